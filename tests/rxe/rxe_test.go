package rxe

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/initramfs"
)

var (
	long     = flag.Bool("long", false, "run all cases in all modes, not only the short form's")
	captures = flag.String("captures", "", "keep captures of both sides of the middlebox in this `folder` (needs tcpdump)")
)

// outcome is what clients and server of a case saw.
type outcome struct {
	errors   []string          // of programs, in their order
	counters map[string]uint64 // of rxe, what they grew by, all guests together
	kernel   []string          // what the guests' kernels complained of
	failed   uint64            // connections that the middlebox has given up, and frames that it held in the end
	waited   time.Duration     // how long guests were ready to run and had no processor
	wrong    []string          // answers to clients that cannot be
	defects                    // of the guests' kernel
}

// perftest runs one of perftest's programs between the server and the first
// client.
func (r *rack) perftest(t *testing.T, args ...string) outcome {
	t.Helper()
	const port = 18515
	args = append(args, "-d", "rxe0", "-F", "-u", "20")
	if !slices.Contains(args, "-x") {
		args = append(args, "-x", "1")
	}
	before := r.counters(t)
	manager := slices.Contains(args, "-R")
	var o outcome
	for try := 0; ; try++ {
		server := r.guests[0].start(t, args...)
		if !manager {
			r.listening(t, port)
		}
		out, exit := r.guests[1].start(t, append(args, r.guests[0].ip4)...).wait(t)
		if exit == 0 {
			if out, exit := server.wait(t); exit != 0 {
				o.errors = append(o.errors, fmt.Sprintf("server: exit status %d: %s", exit, complaints(out)))
			}
			break
		}
		server.kill(t)
		// Nothing tells whether a server listens to the connection manager yet;
		// it does so twice.
		if !manager || try == 20 || !strings.Contains(out, "CM event") {
			o.errors = append(o.errors, fmt.Sprintf("client: exit status %d: %s", exit, complaints(out)))
			break
		}
	}
	o.counters = grown(before, r.counters(t))
	return o
}

// complaints are the lines of perftest's output that are no part of its table.
func complaints(out string) string {
	var lines []string
	for _, l := range strings.Split(out, "\n") {
		if l = strings.TrimSpace(l); l != "" && !strings.ContainsAny(l, "*:-") {
			lines = append(lines, l)
		}
	}
	return strings.Join(lines, " / ")
}

// listening waits until the server listens on a TCP port.
func (r *rack) listening(t *testing.T, port int) {
	t.Helper()
	for deadline := time.Now().Add(jobTime); ; {
		for _, table := range r.guests[0].files(t, "/proc/net/tcp*") {
			if strings.Contains(table, fmt.Sprintf(":%04X 0", port)) && strings.Contains(table, " 0A ") {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing listens on port %d of the server", port)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// held is what the server of contend found in its memory.
type held struct {
	Lock, Guarded, Count, Swap, Appended uint64
	Wrong                                string
}

// did is what a client of contend did.
type did struct {
	Ops, Guarded, Count, Swap, Appended uint64
	Conflicts                           uint64 // compares that failed
	Stale                               uint64 // entries read that were not what was asked for
	Sum, Squares                        uint64
	Wrong, Failed                       string
}

// contend runs several clients of contend against one server, client i in
// guest 1 + i modulo the number of client guests. What they report must agree
// with what the server's memory holds.
func (r *rack) contend(t *testing.T, clients ...string) outcome {
	t.Helper()
	return r.processes(t, clients)
}

// processes is contend with several processes of the server at once, which serve
// the same addresses and may not use each other's memory.
func (r *rack) processes(t *testing.T, clients ...[]string) outcome {
	t.Helper()
	before, found := r.counters(t), r.watch(t)
	all := make([]contest, len(clients))
	for i, args := range clients {
		all[i] = r.begin(t, 18600+i, jobTime, args)
	}
	var o outcome
	for _, c := range all {
		complaints, wrong := c.end(t)
		o.errors, o.wrong = append(o.errors, complaints...), append(o.wrong, wrong...)
	}
	o.counters = grown(before, r.counters(t))
	o.defects = found()
	return o
}

// contest is a server of contend and its clients, while they run.
type contest struct {
	server  *job
	clients []*job
	args    []string // of the clients
}

// begin starts them; they are killed after a time.
func (r *rack) begin(t *testing.T, port int, limit time.Duration, clients []string) contest {
	t.Helper()
	c := contest{args: clients}
	c.server = r.guests[0].startFor(t, limit, "contend", "server", "-b", "50", "-P", strconv.Itoa(port), "-c", strconv.Itoa(len(clients)))
	r.listening(t, port)
	for i, args := range clients {
		g := r.guests[1+i%(len(r.guests)-1)]
		address := r.guests[0].ip4
		if strings.Contains(args, "-g 2") {
			address = r.guests[0].ip6
		}
		c.clients = append(c.clients, g.startFor(t, limit, append([]string{"contend", "client", address, "-P", strconv.Itoa(port), "-w"}, strings.Fields(args)...)...))
	}
	return c
}

// end waits for all, and judges them: what clients complained of, and what they were answered that cannot be. A client
// that was answered wrongly goes no further, so that nothing is added up then.
func (c *contest) end(t *testing.T) (complaints, wrong []string) {
	t.Helper()
	var sum did
	for i, j := range c.clients {
		var d did
		if text := decode(t, j, &d); text != "" {
			complaints = append(complaints, fmt.Sprintf("client %d: %s", i, text))
		}
		if d.Wrong != "" {
			wrong = append(wrong, fmt.Sprintf("client %d (%s): wrong answer: %s", i, c.args[i], d.Wrong))
		}
		if d.Failed != "" {
			each := strings.Split(d.Failed, ", ") // of all its queue pairs
			slices.Sort(each)
			complaints = append(complaints, fmt.Sprintf("client %d: %s", i, strings.Join(each, ", ")))
		}
		sum.Ops += d.Ops
		sum.Guarded += d.Guarded
		sum.Count += d.Count
		sum.Swap += d.Swap
		sum.Appended += d.Appended
		sum.Conflicts += d.Conflicts
		sum.Stale += d.Stale
		sum.Sum += d.Sum
		sum.Squares += d.Squares
	}
	var h held
	if text := decode(t, c.server, &h); text != "" {
		t.Errorf("server: %s", text)
	}
	if h.Wrong != "" {
		t.Errorf("server: %s", h.Wrong)
	}
	if want := (held{0, sum.Guarded, sum.Count, sum.Swap, sum.Appended, h.Wrong}); h != want && len(complaints)+len(wrong) == 0 {
		t.Errorf("server's memory holds %+v, want %+v", h, want)
	}
	// Each number up to the counter's value was one increment's answer.
	var numbers did
	for _, n := range []uint64{sum.Count, sum.Swap} {
		for v := range n {
			numbers.Sum += v
			numbers.Squares += v * v
		}
	}
	if (sum.Sum != numbers.Sum || sum.Squares != numbers.Squares) && len(complaints)+len(wrong) == 0 {
		t.Errorf("%d increments were not answered with each number once", sum.Count+sum.Swap)
	}
	t.Logf("%d operations, %d conflicts, %d stale entries", sum.Ops, sum.Conflicts, sum.Stale)
	return complaints, wrong
}

// decode reads the JSON object that ends a program's output; without one, the
// output is returned.
func decode(t *testing.T, j *job, v any) string {
	t.Helper()
	out, exit := j.wait(t)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), v); err != nil {
		return fmt.Sprintf("exit status %d: %s", exit, out)
	}
	return ""
}

// counters are those of rxe, by guest and name.
func (r *rack) counters(t *testing.T) map[string]uint64 {
	t.Helper()
	all := map[string]uint64{}
	for _, g := range r.guests {
		for file, text := range g.files(t, "/sys/class/infiniband/rxe0/ports/1/hw_counters/*") {
			n, err := strconv.ParseUint(text, 10, 64)
			if err != nil && path.Base(file) != "lifespan" {
				t.Fatalf("%s: %s: %v", g.name, file, err)
			}
			all[g.name+" "+path.Base(file)] = n
		}
	}
	return all
}

// grown is what counters grew by, all guests together.
func grown(before, after map[string]uint64) map[string]uint64 {
	sum := map[string]uint64{}
	for name, n := range after {
		if d := n - before[name]; d != 0 {
			_, name, _ = strings.Cut(name, " ")
			sum[name] += d
		}
	}
	return sum
}

// testCase is something that clients do.
type testCase struct {
	name  string
	short bool // part of the short form
	lossy bool // frames are missing, and rxe counts that
	run   func(*testing.T, *rack) outcome
}

func perf(short bool, args string) testCase {
	return testCase{strings.ReplaceAll(args, " ", ""), short, false, func(t *testing.T, r *rack) outcome {
		return r.perftest(t, strings.Fields(args)...)
	}}
}

func contend(short bool, name string, clients ...string) testCase {
	return testCase{name, short, false, func(t *testing.T, r *rack) outcome { return r.contend(t, clients...) }}
}

// unlucky is contend under a random schedule of faults.
func unlucky(short bool, seed uint64, clients ...string) testCase {
	return testCase{fmt.Sprint("faults", seed), short, true, func(t *testing.T, r *rack) outcome {
		defer r.strike(t, mishaps(seed, 40, 1200))()
		return r.contend(t, clients...)
	}}
}

// judged runs a case, and fails the test for answers that cannot be. Where the server acknowledged atomics or READs without
// their values (defects), clients may have missed these: then the case runs again, twice at most.
func (c testCase) judged(t *testing.T, r *rack) outcome {
	t.Helper()
	for try := 1; ; try++ {
		o := c.run(t, r)
		if len(o.wrong) == 0 {
			return o
		}
		text := fmt.Sprintf("%s; %s", strings.Join(o.wrong, "; "), o.defects)
		if !c.lossy || o.valueless == 0 || try == 3 {
			t.Errorf("%d times: %s", try, text)
			return o
		}
		t.Logf("repeated: %s", text)
	}
}

func cases() []testCase {
	all := []testCase{
		perf(true, "ib_write_bw -s 64 -n 50 -q 4 -m 1024"),
		perf(true, "ib_read_bw -s 4096 -n 25 -q 4 -m 1024"),
		perf(true, "ib_send_bw -s 9000 -n 10 -q 2 -m 4096"),
		perf(true, "ib_atomic_bw -A FETCH_AND_ADD -n 50 -q 4"),
		perf(true, "ib_atomic_bw -A CMP_AND_SWAP -n 50 -q 4"),
		perf(true, "ib_write_bw -R -s 8192 -n 20"),
		perf(false, "ib_write_bw -s 8 -n 200 -q 8 -m 1024"),
		perf(false, "ib_write_bw -s 65536 -n 10 -q 2 -m 4096"),
		perf(false, "ib_write_bw -b -s 3000 -n 25 -q 2 -m 1024"),
		perf(false, "ib_write_bw -x 2 -s 4096 -n 25 -q 2 -m 1024"),
		perf(false, "ib_write_bw -c UC -s 4096 -n 25 -q 2 -m 1024"),
		perf(false, "ib_read_bw -s 8 -n 100 -q 4 -m 1024"),
		perf(false, "ib_read_bw -s 65536 -n 5 -q 2 -m 4096"),
		perf(false, "ib_read_bw -b -s 3000 -n 25 -q 2 -m 1024"),
		perf(false, "ib_read_bw -R -s 8192 -n 20 -q 2"),
		perf(false, "ib_send_bw -s 64 -n 50 -q 4 -m 1024"),
		perf(false, "ib_send_bw -R -s 9000 -n 20"),
		perf(false, "ib_send_bw -c UD -s 512 -n 25"),
		perf(false, "ib_atomic_bw -A FETCH_AND_ADD -o 16 -n 100 -q 8"),
		perf(false, "ib_atomic_bw -A CMP_AND_SWAP -R -n 50 -q 2"),
		perf(false, "ib_atomic_bw -A FETCH_AND_ADD -x 2 -n 50 -q 2"),
		contend(true, "lock", "lock -q 3 -n 10", "lock -q 3 -n 10", "lock -q 2 -n 10"),
		contend(true, "count", "count -q 4 -n 64 -d 16", "count -q 4 -n 64 -d 8", "count -q 1 -n 20 -d 1"),
		contend(true, "swap", "swap -q 2 -n 20", "swap -q 2 -n 20"),
		contend(true, "own", "own -q 4 -n 10 -d 4", "own -q 4 -n 10 -d 4"),
		contend(true, "bulk", "bulk -q 2 -n 4 -d 4 -s 5003 -m 1024", "bulk -q 2 -n 4 -d 2 -s 9000 -m 4096"),
		contend(true, "clover", "clover -q 4 -n 20 -k 2", "clover -q 4 -n 20 -k 2"),
		contend(true, "mixed", "lock -q 2 -n 10", "count -q 2 -n 64 -d 8", "swap -q 2 -n 10", "own -q 2 -n 10", "bulk -q 2 -n 4 -d 2 -s 5000", "clover -q 2 -n 20"),
		{"processes", true, false, func(t *testing.T, r *rack) outcome {
			return r.processes(t, []string{"lock -q 2 -n 10", "count -q 2 -n 64 -d 8"}, []string{"lock -q 2 -n 10", "swap -q 2 -n 10"}, []string{"own -q 2 -n 10", "clover -q 2 -n 20"})
		}},
		contend(false, "lock-many", "lock -q 8 -n 5", "lock -q 8 -n 5", "lock -q 8 -n 5", "lock -q 8 -n 5"),
		contend(false, "count-deep", "count -q 8 -n 128 -d 64", "count -q 8 -n 128 -d 64"),
		contend(false, "swap-many", "swap -q 8 -n 10", "swap -q 8 -n 10"),
		contend(false, "clover-many", "clover -q 8 -n 30 -k 8", "clover -q 8 -n 30 -k 8", "clover -q 4 -n 30 -k 8"),
		contend(false, "mtu-256", "bulk -q 2 -n 4 -d 2 -s 9001 -m 256", "own -q 2 -n 10 -m 256"),
		contend(false, "mtu-4096", "bulk -q 2 -n 4 -d 3 -s 10001 -m 4096", "count -q 2 -n 64 -m 4096"),
		contend(false, "psn-wrap", "own -q 2 -n 10 -d 8 -p 0xffffe0", "bulk -q 2 -n 8 -d 4 -s 5003 -p 0xfffff0", "count -q 2 -n 64 -d 16 -p 0xffffff", "lock -q 2 -n 10 -p 0xfffffe"),
		contend(false, "ipv6", "own -q 2 -n 10 -g 2", "bulk -q 2 -n 4 -d 4 -s 5003 -g 2", "lock -q 2 -n 10 -g 2", "clover -q 2 -n 20 -g 2"),
		contend(false, "ipv4-and-ipv6", "lock -q 3 -n 10 -g 2", "lock -q 3 -n 10", "count -q 2 -n 64 -g 2", "count -q 2 -n 64"),
		contend(true, "rkey", "rkey -q 1"),
		contend(true, "bounds", "bounds -q 2"),
		contend(true, "readonly", "readonly -q 1"),
	}
	// One atomic in flight: when packets are missing, rxe completes an atomic
	// whose answer comes again after a NAK without storing what it says.
	for seed := range uint64(12) {
		all = append(all, unlucky(seed < 2, seed,
			"lock -q 2 -n 10 -t 14", "count -q 2 -n 50 -d 1 -t 14", "own -q 2 -n 10 -d 8 -1 -t 14",
			"bulk -q 1 -n 4 -d 4 -s 5003 -t 14", "clover -q 2 -n 20 -k 2 -t 14", "swap -q 1 -n 20 -t 14"))
	}
	return all
}

// box forgets queue pairs that are gone after some seconds: without a connection
// manager nothing else tells, and cases have many.
const box = "swordbox,idle=5s"

// modes are what is put between clients and server, as arguments of quillon
// run; the tracked memory is all of contend's.
var modes = []struct {
	name  string
	short bool
	args  []string
}{
	{"wire", true, []string{"--nf", "wire,see=all"}},
	{"steer", true, []string{"--nf", "clover-steer,mode=read-write,keys=64"}},
	{"multiplex", true, []string{"--nf", box + ",mode=mux,track=10000000000+1000000"}},
	{"replace", true, []string{"--nf", box + ",mode=replace,replace=learnt"}},
	{"several-shared", false, []string{"--nf", box + ",mode=replace,track=10000000000+1000000,shared=4,order=word"}},
	{"over-packet-sockets", false, []string{"--port", "afpacket", "--nf", box + ",mode=replace,replace=learnt"}},
	{"steer-and-replace", false, []string{"--nf", "clover-steer,mode=read-write,keys=64", "--nf", box + ",mode=replace,replace=learnt"}},
}

// shortestEnd is how long it takes at the least until rxe gives a queue pair of a case up: its first try and seven
// more, of 4.096 us * 2^14 each. If guests waited for less the machine is no reason.
const shortestEnd = 8 * 4096 * time.Nanosecond << 14

// TestClientsSeeNoMiddlebox runs each case first without and then with a
// middlebox: clients may see no other errors, and rxe may count none.
func TestClientsSeeNoMiddlebox(t *testing.T) {
	r := newRack(t, t, 2, 4200, false)
	all := slices.DeleteFunc(cases(), func(c testCase) bool { return !c.short && !*long })
	plain := map[string]outcome{}
	t.Run("plain", func(t *testing.T) {
		for _, c := range all {
			t.Run(c.name, func(t *testing.T) {
				defer r.capture(t)()
				plain[c.name] = c.judged(t, r)
				t.Logf("errors %q, counters %v", plain[c.name].errors, plain[c.name].counters)
			})
		}
	})
	for _, mode := range modes {
		if !mode.short && !*long {
			continue
		}
		if r.lost() {
			r = newRack(t, t, 2, 4200, false)
		}
		t.Run(mode.name, func(t *testing.T) {
			m := r.insert(t, mode.name, mode.args...)
			defer m.remove(t)
			for _, c := range all {
				t.Run(c.name, func(t *testing.T) {
					defer r.capture(t)()
					for try := 1; ; try++ {
						before, waited := m.failed(t), r.waited()
						o := c.judged(t, r)
						wrong := o.worse(c, plain[c.name])
						// Clients would not know: what they asked for again went another way.
						if n := m.failed(t) - before; n != 0 && !c.lossy && len(plain[c.name].errors) == 0 {
							wrong = append(wrong, fmt.Sprintf("%d connections failed", n))
						}
						t.Logf("counters %v, without a middlebox %v", o.counters, plain[c.name].counters)
						if len(wrong) == 0 {
							return
						}
						// Timers of guests that get no processor run out. A fault of the middlebox that shows by
						// timers, too, may hide behind that: so each repetition is in the summary of all tests.
						waited = r.waited() - waited
						if try == 3 || o.counters["completer_retry_err"] == 0 || waited < shortestEnd {
							t.Errorf("%d times, guests waited %v for a processor: %s", try, waited, strings.Join(wrong, "; "))
							return
						}
						t.Logf("repeated: timers ran out while guests waited %v for a processor: %s", waited, strings.Join(wrong, "; "))
					}
				})
			}
			m.check(t)
		})
	}
}

// TestBesideLinux runs the tests of tests/pcap whose other ends are Linux' own in a guest. With -captures it keeps
// what Linux sent: the inputs of the cases.
func TestBesideLinux(t *testing.T) {
	g := newRack(t, t, 1, 1500, false).guests[0]
	j := g.startFor(t, playTime, "/bin/pcap.test", "-test.v", "-test.run", "TestLinux", "-record", "/tmp/record")
	for end := time.Now().Add(playTime); !j.over(t) && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
	out, exit := j.wait(t)
	t.Log(out)
	if exit != 0 || strings.Contains(out, "SKIP") {
		t.Fatalf("exit status %d, or something was left out", exit)
	}
	if *captures == "" {
		return
	}
	for name, b := range g.fetch(t, "/tmp/record/*/*.pcap") {
		file := *captures + strings.TrimPrefix(name, "/tmp/record")
		if err := errors.Join(os.MkdirAll(path.Dir(file), 0o755), os.WriteFile(file, b, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// failed is how many connections an app of the middlebox has given up.
func (m *middlebox) failed(t *testing.T) uint64 {
	t.Helper()
	return m.count(t, "counter connections-failed")
}

// count is the sum of a counter over all nodes.
func (m *middlebox) count(t *testing.T, name string) (n uint64) {
	t.Helper()
	counters, err := m.counters()
	if err != nil {
		t.Error(err)
	}
	for at, v := range counters {
		if strings.HasSuffix(at, " "+name) {
			n += v
		}
	}
	return n
}

// out is how many frames have left the middlebox; it may be nil.
func (m *middlebox) out(t *testing.T) (n uint64) {
	t.Helper()
	if m == nil {
		return 0
	}
	counters, err := m.counters()
	if err != nil {
		t.Error(err)
	}
	return counters["a frames out"] + counters["b frames out"]
}

// report logs what the middlebox's apps know of connections.
func (m *middlebox) report(t *testing.T) {
	t.Helper()
	for i, arg := range m.args {
		if i == 0 || m.args[i-1] != "--nf" {
			continue
		}
		app, _, _ := strings.Cut(arg, ",")
		err := m.r.space.Do(func() error {
			out, err := initramfs.Run(m.r.quillon, "report", app, "--control", m.control)
			t.Logf("quillon report %s:\n%s", app, out)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// overruns are reasons for want of room; the guests are slow, and few.
var overruns = []string{"link-full", "port-closed", "no-buffer", "hold-full", "window-full", "conn-table-full"}

// check says what the middlebox counted, and fails the test for overruns.
func (m *middlebox) check(t *testing.T) {
	t.Helper()
	counters, err := m.counters()
	if err != nil {
		t.Error(err)
	}
	for _, name := range slices.Sorted(maps.Keys(counters)) {
		t.Logf("%s: %d", name, counters[name])
		if slices.ContainsFunc(overruns, func(o string) bool { return strings.HasSuffix(name, " reason "+o) }) {
			t.Errorf("%s: %d", name, counters[name])
		}
	}
}

// faults are the counters of rxe that only grow when a packet is missing, out
// of place or refused.
var faults = []string{"out_of_seq_request", "rcvd_seq_err", "retry_exceeded_err", "retry_rnr_exceeded_err", "send_err"}

// worse is what clients or rxe saw more errors of than they do without a middlebox.
func (o outcome) worse(c testCase, plain outcome) (wrong []string) {
	if !slices.Equal(o.errors, plain.errors) {
		wrong = append(wrong, fmt.Sprintf("errors: %q, without a middlebox %q", o.errors, plain.errors))
	}
	for _, name := range faults {
		if o.counters[name] > plain.counters[name] && !c.lossy {
			wrong = append(wrong, fmt.Sprintf("rxe counts %d of %s, without a middlebox %d", o.counters[name], name, plain.counters[name]))
		}
	}
	return wrong
}
