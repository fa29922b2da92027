package rxe

import (
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// program is something that uses RDMA between the server and the first client,
// as its users start it: with its own rights, depths and timeouts. How it ends
// says whether what it received is right.
type program struct {
	name  string
	begin func(t *testing.T, r *rack, n network) *play
	// patient: its timeouts, those of rdma_cm, are longer than what a busy machine
	// needs. With others packets come twice, and so out of their order.
	patient bool
	// longer has it do twice as much from now on; nil: it takes a time that is set.
	longer func()
}

// endedEarly begins what play.early says.
const endedEarly = "the program has ended before it was disturbed: "

// early reports that the program ended before it was disturbed, and has it do more the next time, if it can.
func (p *program) early(o outcome) bool {
	if p.longer == nil || !slices.ContainsFunc(o.errors, func(e string) bool { return strings.HasPrefix(e, endedEarly) }) {
		return false
	}
	p.longer()
	return true
}

// network is one of the two that the guests are on.
type network struct{ tagged bool }

func (n network) ip4(i int) string {
	if n.tagged {
		return TaggedIP4(i)
	}
	return IP4(i)
}

// gid is the index of the GID of guest i's address.
func (n network) gid(t *testing.T, r *rack, i int, ip6 bool) string {
	t.Helper()
	ip := n.ip4(i)
	if ip6 {
		ip = map[bool]string{false: IP6(i), true: TaggedIP6(i)}[n.tagged]
	}
	want := netip.MustParseAddr(ip).As16()
	for file, text := range r.guests[i].files(t, "/sys/class/infiniband/rxe0/ports/1/gids/[0-9]") {
		if a, err := netip.ParseAddr(text); err == nil && a.As16() == want {
			return path.Base(file)
		}
	}
	t.Fatalf("%s has no GID for %s", r.guests[i].name, ip)
	return ""
}

// play is a program that runs.
type play struct {
	r       *rack
	servers []*job
	clients []*job
	stays   bool                        // when it fails, something of it is left in the guests
	judge   func(t *testing.T) []string // after the clients have ended: what is wrong beside exit statuses
	spoils  bool                        // it may leave something behind
	early   string                      // it ended before it was disturbed
	box     *middlebox                  // that it runs through; nil: none
	owed    uint64                      // frames that the middlebox held, or took and did not give, while nothing arrived any more
}

// end waits until the program has ended, and returns what is wrong. Clients that
// no longer make progress are ended: it is wrong not to be told.
func (p *play) end(t *testing.T) (complaints []string) {
	t.Helper()
	running := func(j *job) bool { return !j.over(t) }
	arrived, since := p.r.packets(t, "rcvd"), time.Now()
	var half, out uint64
	for slices.ContainsFunc(p.clients, running) {
		time.Sleep(50 * time.Millisecond)
		if n := p.r.packets(t, "rcvd"); n != arrived {
			arrived, since, half = n, time.Now(), 0
		} else if half == 0 && time.Since(since) > quiet/2 {
			out = p.box.out(t)
			half = p.r.packets(t, "sent")
		} else if time.Since(since) > quiet {
			vain := p.r.packets(t, "sent") - half
			out = p.box.out(t) - out
			t.Logf("nothing arrives any more; in the last %v guests sent %d packets, and %d frames left the middlebox", quiet/2, vain, out)
			if p.box != nil {
				p.box.report(t)
				p.owed = vain - min(vain, out) + p.box.count(t, "counter held")
			}
			break
		}
	}
	for i, j := range p.clients {
		if running(j) {
			p.spoils = true
			out := "it cannot be killed"
			if j.abandon(t) {
				out = complaint(j.reply.Output)
			}
			complaints = append(complaints, fmt.Sprintf("client %d hangs: nothing arrived for %v, and it was not told: %s", i, quiet, out))
		} else if strings.Contains(j.reply.Output, "\nkilled after ") {
			p.spoils = true
			complaints = append(complaints, fmt.Sprintf("client %d hangs, though packets arrive: %s", i, complaint(j.reply.Output)))
		} else if j.reply.Exit != 0 {
			complaints = append(complaints, fmt.Sprintf("client %d: exit status %d: %s", i, j.reply.Exit, complaint(j.reply.Output)))
		}
	}
	for deadline := time.Now().Add(quiet); len(complaints) == 0 && slices.ContainsFunc(p.servers, running) && time.Now().Before(deadline); {
		time.Sleep(50 * time.Millisecond)
	}
	for i, j := range p.servers {
		if running(j) {
			if len(complaints) == 0 {
				complaints = append(complaints, fmt.Sprintf("server %d does not end", i))
			}
			p.spoils = !j.abandon(t) || p.spoils
		} else if j.reply.Exit != 0 {
			complaints = append(complaints, fmt.Sprintf("server %d: exit status %d: %s", i, j.reply.Exit, complaint(j.reply.Output)))
		}
	}
	if len(complaints) > 0 {
		p.spoils = p.spoils || p.stays
	} else if p.judge != nil {
		complaints = p.judge(t)
	}
	return complaints
}

// complaint is what a program's output says about an error, or else its end.
func complaint(out string) string {
	lines := slices.DeleteFunc(strings.Split(out, "\n"), func(l string) bool { return !errorLine.MatchString(l) })
	if len(lines) > 0 {
		out = strings.Join(lines, " / ")
	}
	out = strings.Join(strings.Fields(out), " ")
	return out[max(0, len(out)-300):]
}

var errorLine = regexp.MustCompile(`(?i)error|fail|wrong|status|unable|couldn|cannot|can't|abort|killed|read back`)

// busy waits until the program is in the midst of its work: the server has
// received packets for a while, and does so now. A program that has ended before
// that was not disturbed, and busy says false.
func (p *play) busy(t *testing.T, during time.Duration) bool {
	t.Helper()
	const some = 50
	var since time.Time
	server := p.r.guests[0]
	for start := p.r.packets(t, "rcvd", server); ; time.Sleep(10 * time.Millisecond) {
		if !slices.ContainsFunc(p.clients, func(j *job) bool { return !j.over(t) }) {
			return false
		}
		n := p.r.packets(t, "rcvd", server)
		if since.IsZero() && n-start >= some {
			since, start = time.Now(), n
		} else if !since.IsZero() && time.Since(since) >= during && n-start >= some {
			return true
		}
	}
}

// mustBeBusy is busy after the time that a middlebox needs to know the program's connections.
func (p *play) mustBeBusy(t *testing.T) {
	t.Helper()
	if !p.busy(t, time.Second) && p.clients[0].reply.Exit == 0 {
		p.early = endedEarly + complaint(p.clients[0].reply.Output)
	}
}

// packets is how many packets all guests, or these, have received ("rcvd") or sent.
func (r *rack) packets(t *testing.T, which string, of ...*guest) (sum uint64) {
	t.Helper()
	if of == nil {
		of = r.guests
	}
	for _, g := range of {
		all := g.files(t, "/sys/class/infiniband/rxe0/ports/1/hw_counters/"+which+"_pkts")
		if len(all) != 1 {
			t.Fatalf("%s does not count packets", g.name)
		}
		for _, text := range all {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}

// accepts waits until a program of the server listens to the connection manager.
func (r *rack) accepts(t *testing.T, port int) {
	t.Helper()
	for deadline := time.Now().Add(jobTime); ; time.Sleep(20 * time.Millisecond) {
		if strings.Contains(r.guests[0].run(t, "rdma", "res", "show", "cm_id"), fmt.Sprintf(":%d ", port)) {
			return
		} else if time.Now().After(deadline) {
			t.Fatalf("nothing of the server listens to the connection manager, port %d", port)
		}
	}
}

// pair begins a program that is server and client, which listens to TCP or to
// the connection manager.
func (r *rack) pair(t *testing.T, port int, manager bool, server, client []string) *play {
	t.Helper()
	p := &play{r: r}
	p.servers = append(p.servers, r.guests[0].startFor(t, playTime, server...))
	if manager {
		r.accepts(t, port)
	} else {
		r.listening(t, port)
	}
	p.clients = append(p.clients, r.guests[1].startFor(t, playTime, client...))
	return p
}

// perftests is a program of perftest for some seconds, with its own settings.
func perftests(args string) program {
	return program{name: strings.ReplaceAll(args, " ", ""), begin: func(t *testing.T, r *rack, n network) *play {
		server := append(strings.Fields(args), "-d", "rxe0", "-F", "-D", "3", "-x", n.gid(t, r, 0, false))
		client := append(slices.Clone(server[:len(server)-1]), n.gid(t, r, 1, false), n.ip4(0))
		return r.pair(t, 18515, false, server, client)
	}}
}

// ucx is a test of ucx_perftest. IPv6 it is: it takes no datagrams of rxe with
// an IPv4 header for its own.
func ucx(test string, iterations int, size string) program {
	return program{name: "ucx_perftest-" + test, longer: func() { iterations *= 2 }, begin: func(t *testing.T, r *rack, n network) *play {
		with := func(i int, args ...string) []string {
			return append([]string{"env", "UCX_TLS=rc", "UCX_NET_DEVICES=rxe0:1", "UCX_IB_GID_INDEX=" + n.gid(t, r, i, true), "ucx_perftest"}, args...)
		}
		return r.pair(t, 13337, false, with(0), with(1, IP4(0), "-t", test, "-s", size, "-n", strconv.Itoa(iterations), "-w", "10"))
	}}
}

// rping checks every byte that comes back.
var rping = program{name: "rping-v", patient: true, begin: func(t *testing.T, r *rack, n network) *play {
	args := []string{"-v", "-V", "-C", "1500", "-a", n.ip4(0)}
	return r.pair(t, 7174, true, append([]string{"rping", "-s"}, args...), append([]string{"rping", "-c"}, args...))
}}

// exports has the server's kernel export something, which it does from then on.
func (r *rack) exports(t *testing.T, port int, argv ...string) {
	t.Helper()
	if what := strings.Join(argv, " "); !r.serves[what] {
		r.guests[0].run(t, argv...)
		r.serves[what] = true
		r.dmesg(t)
	}
	r.accepts(t, port)
}

// storage are file systems of the server's, whose files the client checks for some seconds.
func storage(name string, port func(network) int, server, client func(network) []string) program {
	return program{name: name, patient: true, begin: func(t *testing.T, r *rack, n network) *play {
		r.exports(t, port(n), server(n)...)
		return &play{r: r, stays: true, clients: []*job{r.guests[1].startFor(t, playTime, client(n)...)}}
	}}
}

const storageSeconds = "4"

var nvme = func() program {
	port := func(n network) int { return map[bool]int{false: 4420, true: 4421}[n.tagged] }
	return storage("nvme", port,
		func(n network) []string { return []string{"nvme-server", n.ip4(0), strconv.Itoa(port(n))} },
		func(n network) []string {
			return []string{"nvme-client", n.ip4(0), strconv.Itoa(port(n)), storageSeconds}
		})
}()

var nfs = storage("nfs", func(network) int { return 20049 },
	func(network) []string { return []string{"nfs-server"} },
	func(n network) []string { return []string{"nfs-client", n.ip4(0), n.ip4(1), storageSeconds} })

var iser = storage("iser", func(network) int { return 3260 },
	func(n network) []string { return []string{"iser-server", n.ip4(0)} },
	func(n network) []string { return []string{"iser-client", n.ip4(0), storageSeconds} })

// mpi is ring, with Open MPI over UCX.
var mpi = program{name: "mpi", begin: func(t *testing.T, r *rack, n network) *play {
	if !r.serves["remote"] {
		r.guests[0].startFor(t, 24*time.Hour, "remote", "-l")
		r.serves["remote"] = true
	}
	r.listening(t, 514)
	if n.gid(t, r, 0, true) != n.gid(t, r, 1, true) {
		t.Fatal("the guests' GIDs have other numbers")
	}
	return &play{r: r, stays: true, clients: []*job{r.guests[1].startFor(t, playTime, "mpi-client", n.gid(t, r, 1, true), storageSeconds)}}
}}

// sharers are clients of contend for words of each other's. One operation is in
// flight where rxe may repeat it: see cases.
func sharers(t *testing.T, r *rack, n network) *play {
	gid := " -t 14 -g " + n.gid(t, r, 1, false)
	// When packets are missing they take half a minute on a busy machine; one that hangs is found before.
	c := r.begin(t, 18600, playTime, []string{
		"lock -q 2 -n 125" + gid, "count -q 4 -n 600 -d 1" + gid, "own -q 2 -n 100 -1" + gid, "swap -q 1 -n 200" + gid,
	})
	return &play{r: r, servers: []*job{c.server}, clients: c.clients, judge: func(t *testing.T) []string {
		complaints, wrong := c.end(t)
		return append(complaints, wrong...)
	}}
}

// programs are all that is run.
func programs() []program {
	return []program{
		perftests("ib_atomic_bw -A FETCH_AND_ADD -q 4"),
		{name: "sharers", begin: sharers},
		perftests("ib_atomic_bw -A CMP_AND_SWAP -q 2"),
		perftests("ib_write_bw -q 4"),
		perftests("ib_read_bw -q 4"),
		perftests("ib_send_bw -q 2"),
		perftests("ib_write_lat"),
		perftests("ib_read_lat"),
		perftests("ib_send_lat"),
		perftests("ib_atomic_lat"),
		rping,
		ucx("tag_bw", 2000, "4096"),
		ucx("ucp_put_bw", 4000, "1024"),
		ucx("ucp_get", 2000, "1024"),
		ucx("ucp_fadd", 2000, "8"),
		ucx("ucp_cswap", 2000, "8"),
		mpi,
		nvme,
		nfs,
		iser,
	}
}

// stage is where a program runs: over the bare wire, or through a middlebox.
type stage struct {
	r    *rack
	name string
	args []string // of quillon run; none for the bare wire
	seed uint64   // of what happens by chance
	box  *middlebox
}

// insert puts the middlebox in, if there is one.
func (s *stage) insert(t *testing.T) {
	t.Helper()
	if s.args != nil {
		s.box = s.r.insert(t, s.name, s.args...)
	}
}

// disturbance is what happens to a program.
type disturbance struct {
	name    string
	network network
	late    bool // the middlebox comes while the program runs
	// missing: packets are, or come twice, and rxe counts that
	missing bool
	before  func(t *testing.T, s *stage) (end func())
	during  func(t *testing.T, s *stage, p *play)
}

// pause stops the server while it is at work, and perhaps a second time: its
// processor, not its clock.
func pause(length time.Duration) disturbance {
	return disturbance{name: "pause-" + length.String(), missing: true, during: func(t *testing.T, s *stage, p *play) {
		p.mustBeBusy(t)
		s.r.guests[0].pause(t, length)
		if p.busy(t, length/2) {
			s.r.guests[0].pause(t, length)
		}
	}}
}

func disturbances() []disturbance {
	return []disturbance{
		{name: "calm"},
		pause(200 * time.Millisecond),
		pause(700 * time.Millisecond),
		pause(2 * time.Second),
		{name: "tagged", network: network{tagged: true}},
		{name: "loss", missing: true, before: func(t *testing.T, s *stage) func() { return s.r.strike(t, mishaps(s.seed, 24, 3000)) }},
		{name: "kill", missing: true, during: func(t *testing.T, s *stage, p *play) {
			const absent = 300 * time.Millisecond
			p.mustBeBusy(t)
			if s.box == nil {
				s.r.outage(t, absent)
			} else {
				s.box.crash(t, absent)
			}
		}},
		{name: "insert", late: true, during: func(t *testing.T, s *stage, p *play) {
			p.mustBeBusy(t)
			s.insert(t)
		}},
	}
}

// run runs a program once.
func (d disturbance) run(t *testing.T, s *stage, pr program) (o outcome) {
	t.Helper()
	defer s.r.capture(t, s.name)()
	s.r.dmesg(t)
	before, waited, found := s.r.counters(t), s.r.waited(), s.r.watch(t)
	defer func() { o.defects = found() }()
	if !d.late {
		s.insert(t)
	}
	defer func() {
		if s.box != nil {
			s.box.check(t)
			s.box.remove(t)
		}
	}()
	if d.before != nil {
		defer d.before(t, s)()
	}
	s.r.spoilt = true // should the test end here
	p := pr.begin(t, s.r, d.network)
	if d.during != nil {
		d.during(t, s, p)
	}
	p.box = s.box
	if o.errors = p.end(t); p.early != "" {
		o.errors = append(o.errors, p.early)
	}
	o.waited = s.r.waited() - waited
	s.r.spoilt = p.spoils
	o.counters = grown(before, s.r.counters(t))
	o.kernel = s.r.dmesg(t)
	if s.box != nil {
		o.failed = s.box.count(t, "counter resets") + p.owed
	}
	return o
}

// dmesg are the kernels' messages of errors since it was last called, without what differs
// between two of a kind.
func (r *rack) dmesg(t *testing.T) (all []string) {
	t.Helper()
	if !*long {
		return nil
	}
	for _, g := range r.guests {
		for _, l := range strings.Split(g.run(t, "dmesg", "-r", "-c"), "\n") {
			if m := regexp.MustCompile(`^<[0-3]>\[[^]]*\] (.*)`).FindStringSubmatch(l); m != nil {
				all = append(all, g.name+": "+numbers.ReplaceAllString(m[1], "N"))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// through is what each program runs through, as arguments of quillon run. An
// instance serves one case.
var through = []struct {
	name string
	args []string
}{
	{"steer", []string{"--nf", "clover-steer,mode=read-write,keys=64"}},
	{"multiplex", []string{"--nf", "swordbox,mode=mux,track=10000000000+1000000"}},
	{"replace", []string{"--nf", "swordbox,mode=replace,replace=learnt"}},
}

// brief is the short form: what a server that pauses must not end.
func brief(program, disturbance string) bool {
	return strings.HasPrefix(program, "ib_atomic_bw-ACMP") && disturbance == "pause-200ms" || program == "sharers" && disturbance == "pause-700ms"
}

// TestProgramsSeeNoMiddlebox runs each program first over the bare wire and then
// through a middlebox, while the same happens to it. A case alone:
//
//	go test -count=1 -v -run TestProgramsSeeNoMiddlebox/PROGRAM/DISTURBANCE/MODE ./tests/rxe -long
func TestProgramsSeeNoMiddlebox(t *testing.T) {
	var r *rack
	fresh := func(now *testing.T) *rack {
		if r == nil || r.lost() {
			if r != nil {
				r.takeDown()
			}
			r = newRack(now, t, 1, 4200, *long)
		}
		return r
	}
	both := func(t *testing.T, pr program, d disturbance) {
		var wire law
		seed := uint64(3) // with 2 iSER hangs over the bare wire
		bare := func(t *testing.T) bool {
			o := d.run(t, &stage{r: fresh(t), name: fmt.Sprintf("wire-%d", time.Now().UnixMilli()), seed: seed}, pr)
			t.Logf("bare wire: errors %q, kernels %q, counters %v, %s", o.errors, o.kernel, o.counters, o.defects)
			if pr.early(o) {
				return false
			}
			wire.allow(o)
			return len(o.errors) == 0
		}
		for ; !bare(t); seed++ {
			if seed == 7 {
				t.Fatal("nothing to compare with: five times errors over the bare wire")
			}
		}
		for _, m := range through {
			if !*long && m.name == "steer" {
				continue
			}
			t.Run(m.name, func(t *testing.T) {
				for try := 1; ; try++ {
					s := &stage{r: fresh(t), name: fmt.Sprintf("%s-%d", m.name, time.Now().UnixMilli()), args: m.args, seed: seed}
					o := d.run(t, s, pr)
					wrong := wire.forbids(o, pr.patient && !d.missing)
					t.Logf("errors %q, kernels %q, counters %v, %s", o.errors, o.kernel, o.counters, o.defects)
					if len(wrong) == 0 {
						return
					}
					t.Logf("what quillon said:\n%s", s.box.log.String())
					if try < 3 && pr.early(o) {
						t.Logf("repeated: %s", strings.Join(wrong, "; "))
						bare(t)
						continue
					}
					why := fmt.Sprintf("guests waited %v for a processor: %s", o.waited, strings.Join(wrong, "; "))
					if (o.renumbered > 0 || d.missing && o.valueless > 0) && try < 3 {
						t.Logf("repeated, as the guests' kernel erred: %s; %s", o.defects, why)
						continue
					}
					if try == 3 || o.failed != 0 || o.counters["completer_retry_err"] == 0 || o.waited < shortestEnd {
						t.Errorf("%d times, the middlebox gave up connections or held frames (%d), and %s", try, o.failed, why)
						return
					}
					t.Logf("repeated: timers ran out, the middlebox gave up nothing, and %s", why)
					bare(t)
				}
			})
		}
	}
	for _, pr := range programs() {
		all := slices.DeleteFunc(disturbances(), func(d disturbance) bool { return !*long && !brief(pr.name, d.name) })
		if len(all) == 0 {
			continue
		}
		t.Run(pr.name, func(t *testing.T) {
			for _, d := range all {
				t.Run(d.name, func(t *testing.T) { both(t, pr, d) })
			}
		})
	}
}

// ended are the counters of rxe that grow when a queue pair was given up.
var ended = []string{"retry_exceeded_err", "retry_rnr_exceeded_err"}

// law is what the bare wire allows: what was seen there while the same happened. After a loss Linux (rxe of 6.1)
// now and then sends the oldest request again and forgets those behind it: seen with NVMe, NFS and iSER, which then
// hang, or tell of an error after half a minute.
type law struct {
	kinds    []string          // of what programs and kernels complained of
	counters map[string]uint64 // of rxe, the most that they grew by
}

// allow adds what was seen over the bare wire.
func (l *law) allow(o outcome) {
	for _, e := range slices.Concat(o.errors, o.kernel) {
		l.kinds = append(l.kinds, kindOf(e))
	}
	if l.counters == nil {
		l.counters = map[string]uint64{}
	}
	for name, n := range o.counters {
		l.counters[name] = max(l.counters[name], n)
	}
}

// kindOf is a complaint without what differs between two of a kind.
func kindOf(complaint string) string {
	if before, _, ok := strings.Cut(complaint, " hangs"); ok {
		complaint = before + " hangs"
	}
	return numbers.ReplaceAllString(complaint, "N")
}

var numbers = regexp.MustCompile(`\b(0x)?[0-9a-f]*[0-9][0-9a-f]*\b`)

// forbids are the errors in o that are not seen over the bare wire: of programs, of kernels, and of what rxe counts.
// Strictly, that is also packets that are missing or out of place. Of a middlebox that gave up something all are.
func (l *law) forbids(o outcome, strictly bool) (wrong []string) {
	for _, e := range slices.Concat(o.errors, o.kernel) {
		if o.failed != 0 || !slices.Contains(l.kinds, kindOf(e)) {
			wrong = append(wrong, e)
		}
	}
	names := ended
	if strictly {
		names = faults
	}
	for _, name := range names {
		if o.counters[name] > 0 && l.counters[name] == 0 {
			wrong = append(wrong, fmt.Sprintf("rxe counts %d of %s, over the bare wire none", o.counters[name], name))
		}
	}
	return wrong
}
