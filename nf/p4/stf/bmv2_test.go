package stf

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/big"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/p4"
)

// input is a frame that comes in on a port.
type input struct {
	port  uint32
	frame []byte
}

// outcome is a frame that left the engine, and what it was made of.
type outcome struct {
	frame []byte
	of    input
}

// lastPort is where the last frame comes in. Its file is a pipe, whose reader
// waits for that frame, and with it for the end of the configuration.
const lastPort = 60

// seeds is the environment variable that says how often other entries and
// packets are drawn; it is done once.
const seeds = "QUILLON_BMV2_SEEDS"

// TestBmv2 gives the same entries and packets to simple_switch and to the
// engine, and compares frames, counters and registers.
func TestBmv2(t *testing.T) {
	needBmv2(t, "simple_switch")
	ofPrograms(t, 300, rounds(), compareBmv2)
}

// TestBmv2Samples does the same with p4c's samples (see tests/p4), without entries
// besides those in their tests.
func TestBmv2Samples(t *testing.T) { ofSamples(t, samples(t), 100, rounds(), compareBmv2) }

// switches are bmv2's programs, by the architecture of the programs that they run.
var switches = map[string]string{"v1model": "simple_switch", "psa": "psa_switch"}

// rounds are the seeds to draw by.
func rounds() []uint64 {
	n, err := strconv.ParseUint(os.Getenv(seeds), 10, 32)
	if err != nil {
		n = 1
	}
	all := make([]uint64, n)
	for i := range all {
		all[i] = uint64(i)
	}
	return all
}

// compare gives packets to bmv2 and to the engine.
type compare func(t *testing.T, s *setup, json string, in []input)

// ofPrograms compares on the programs of p4src, with more entries and packets than
// those in their tests.
func ofPrograms(t *testing.T, more int, seeds []uint64, with compare) {
	files, err := filepath.Glob("../../../tests/p4/*/*.stf")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for i, file := range files {
		program := filepath.Base(filepath.Dir(file))
		for _, seed := range seeds {
			t.Run(fmt.Sprintf("%s/%s/%d", program, filepath.Base(file), seed), func(t *testing.T) {
				json := "../../../p4src/" + program + ".json"
				r := rand.New(rand.NewPCG(uint64(i), seed))
				s, in := prepare(t, json, file)
				s.grow(t, r)
				in = packets(in, more, r)
				if program == "swordbox_mux" {
					in = withoutWalks(t, s, in)
				}
				with(t, s, json, in)
			})
		}
	}
}

// samples are p4c's, NAME.stf beside NAME.json.
func samples(t *testing.T) []string {
	const samples = "QUILLON_P4C_SAMPLES"
	dir := os.Getenv(samples)
	if dir == "" {
		t.Skipf("%s names no folder of NAME.json and NAME.stf: p4c's samples are not compared", samples)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.stf"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d tests in %s, %v", len(files), dir, err)
	}
	return files
}

func ofSamples(t *testing.T, files []string, more int, seeds []uint64, with compare) {
	for i, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".stf")
		for _, seed := range seeds {
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) {
				json := strings.TrimSuffix(file, ".stf") + ".json"
				s, in := prepare(t, json, file)
				if s.prog.Arch() == "psa" {
					t.Skip("TestBmv2PSASamples runs it")
				}
				needBmv2(t, switches[s.prog.Arch()])
				if len(in) == 0 {
					return
				}
				if undefined[name] == "" {
					in = withoutLoops(t, s, packets(in, more, rand.New(rand.NewPCG(uint64(i), seed))))
				} else {
					in = append(in, last)
				}
				with(t, s, json, in)
			})
		}
	}
}

// needBmv2 skips the test if one of bmv2's switches or its command line is not there.
func needBmv2(t *testing.T, name string) {
	t.Helper()
	for _, name := range []string{name, name + "_CLI"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not on the PATH: the engine is not compared with bmv2", name)
		}
	}
}

// TestBmv2Selector: both choose the same member of a group for every flow.
func TestBmv2Selector(t *testing.T) {
	needBmv2(t, "simple_switch")
	const json = "../../../p4src/ipv4_router.json"
	const profile, table, action = "router_ingress.ecmp_selector", "router_ingress.ecmp", "router_ingress.choose"
	r := rand.New(rand.NewPCG(4, 4))
	s, in := prepare(t, json, "../../../tests/p4/ipv4_router/unicast.stf")
	s.config = nil
	table4, _ := s.prog.Table("router_ingress.ipv4_lpm")
	mac, _ := s.prog.Table("router_ingress.router_mac")
	hop, _ := s.prog.Table("router_ingress.next_hop")
	frame := slices.Clone(in[0].frame)
	s.more = append(s.more,
		addition{mac, p4.Entry{Key: []p4.Match{{Value: []byte{1}}, {Value: frame[:6]}}, Action: p4.Action{Name: "NoAction"}}},
		addition{table4, p4.Entry{Key: []p4.Match{{Value: []byte{10, 0, 0, 0}, Prefix: 8}}, Action: p4.Action{Name: "router_ingress.set_group"}}})
	const members = 7
	for i := range byte(members) {
		s.more = append(s.more, addition{hop, p4.Entry{Key: []p4.Match{{Value: []byte{i + 1}}},
			Action: p4.Action{Name: "router_ingress.forward", Args: [][]byte{{2, 2}, {3, 3}, {i + 1}}}}})
		s.lines = append(s.lines, fmt.Sprintf("act_prof_create_member %s %s %d", profile, action, i+1))
	}
	// Groups of all members, of some of them, and of one.
	groups := [][]uint32{{0, 1, 2, 3, 4, 5, 6}, {1, 3, 4}, {6}}
	for g, list := range groups {
		s.lines = append(s.lines, "act_prof_create_group "+profile)
		for _, m := range list {
			s.lines = append(s.lines, fmt.Sprintf("act_prof_add_member_to_group %s %d %d", profile, m, g))
		}
		s.lines = append(s.lines, fmt.Sprintf("table_indirect_add_with_group %s %#x/16 => %d", table, 10<<24|g<<16, g))
	}
	s.lines = append(s.lines, fmt.Sprintf("table_indirect_add %s %#x/16 => 2", table, 10<<24|3<<16))
	s.also = func(sw *p4.Switch) error {
		for i := range uint32(members) {
			if err := sw.SetMember(profile, i+1, p4.Action{Name: action, Args: [][]byte{{byte(i + 1)}}}); err != nil {
				return err
			}
		}
		key := func(i int) []p4.Match { return []p4.Match{{Value: []byte{10, byte(i), 0, 0}, Prefix: 16}} }
		for g, list := range groups {
			var of []p4.GroupMember
			for _, m := range list {
				of = append(of, p4.GroupMember{ID: m + 1})
			}
			if err := sw.SetGroup(profile, uint32(g+1), of); err != nil {
				return err
			}
			if _, err := sw.Insert(table, p4.Entry{Key: key(g), Group: uint32(g + 1)}); err != nil {
				return err
			}
		}
		_, err := sw.Insert(table, p4.Entry{Key: key(3), Member: 3})
		return err
	}
	in = in[:0]
	for range 400 {
		f := slices.Clone(frame)
		copy(f[26:30], []byte{192, 168, byte(r.IntN(256)), byte(r.IntN(256))})
		copy(f[30:34], []byte{10, byte(r.IntN(4)), byte(r.IntN(256)), byte(r.IntN(256))})
		binary.BigEndian.PutUint32(f[34:], r.Uint32())
		f[23] = []byte{6, 17, 1}[r.IntN(3)]
		repair(f)
		in = append(in, input{1, f})
	}
	in = append(in, last)
	compareBmv2(t, s, json, in)
}

// undefined are samples of p4c whose outcome bmv2 does not define for every
// packet.
var undefined = map[string]string{
	"equality-bmv2":                    "compares fields of headers that a packet may lack",
	"gauntlet_hdr_function_cast-bmv2":  "reads a field of a header that a packet may lack",
	"gauntlet_invalid_hdr_assign-bmv2": "reads a field of a header that a packet lacks",
	"issue1566-bmv2":                   "reads a field of a header that a packet may lack",
	"issue2488-bmv2":                   "reads a field of a header that a packet may lack",
	"issue1097-2-bmv2":                 "ingress and egress write one register, and bmv2 has several packets under way",
	"runtime-index-bmv2":               "an index from the packet may be outside of a stack",
	"runtime-index-2-bmv2":             "an index from the packet may be outside of a stack",
}

// setup is what both switches are told before the first packet.
type setup struct {
	prog   *p4.Program
	config []Statement
	more   []addition
	// also is what no statement says, and lines the same for the command line.
	also  func(sw *p4.Switch) error
	lines []string
	// direct are the names of direct counters, by table.
	direct map[string]string
}

// addition is an entry that no file has.
type addition struct {
	table p4.TableInfo
	entry p4.Entry
}

// run is the engine, set up.
func (s *setup) run(t *testing.T) *run {
	t.Helper()
	r, err := newRun(s.prog, p4.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if s.prog.Arch() == "psa" {
		if err := r.sw.DeleteSession(0); err != nil { // psa_switch begins without PSA_CLONE_SESSION_TO_CPU
			t.Fatal(err)
		}
	}
	for i := range s.config {
		if err := r.do(&s.config[i]); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range s.more {
		if _, err := r.sw.Insert(a.table.Name, a.entry); err != nil {
			t.Fatal(err)
		}
	}
	if s.also != nil {
		if err := s.also(r.sw); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// load takes a program.
func load(t *testing.T, file string) *setup {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s := &setup{direct: map[string]string{}}
	if s.prog, err = p4.Load(b); err != nil {
		t.Fatal(err)
	}
	var arrays struct {
		All []struct{ Name, Binding string } `json:"counter_arrays"`
	}
	if err := json.Unmarshal(b, &arrays); err != nil {
		t.Fatal(err)
	}
	for _, c := range arrays.All {
		if c.Binding != "" {
			s.direct[c.Binding] = c.Name
		}
	}
	return s
}

// prepare takes the configuration before a file's first packet, and its packets.
func prepare(t *testing.T, json, file string) (*setup, []input) {
	t.Helper()
	s := load(t, json)
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	var in []input
	for i, st := range all {
		if st.Op != Packet {
			continue
		}
		if in == nil {
			s.config = slices.DeleteFunc(slices.Clone(all[:i]), func(s Statement) bool {
				// Colours depend on the time, unless no tokens come.
				return slices.ContainsFunc(s.Rates, func(r Rate) bool { return r.PerMicrosecond != 0 })
			})
		}
		frame, err := hex.DecodeString(st.Data)
		if err != nil {
			t.Fatal(err)
		}
		in = append(in, input{st.Port, frame})
	}
	return s, in
}

// grow adds entries: those of the configuration with other keys, actions and
// arguments nearby.
func (s *setup) grow(t *testing.T, r *rand.Rand) {
	sw := s.run(t).sw
	nearby := func(b []byte, bits int) []byte {
		v := new(big.Int).SetBytes(b)
		for range r.IntN(3) {
			i := r.IntN(min(bits, 3))
			v.SetBit(v, i, v.Bit(i)^1)
		}
		return v.Bytes()
	}
	for _, table := range s.prog.Tables() {
		var like []p4.Entry
		_ = sw.Entries(table.Name, func(_ p4.Handle, e p4.Entry) bool {
			like = append(like, e)
			return true
		})
		if len(like) == 0 || table.Const || table.Profile != "" {
			continue
		}
		args := map[string][][]byte{}
		for _, e := range like {
			args[e.Action.Name] = e.Action.Args
		}
		for range r.IntN(12) {
			e := p4.Entry{Action: like[r.IntN(len(like))].Action}
			if a := table.Actions[r.IntN(len(table.Actions))]; args[a.Name] != nil || len(a.Params) == 0 {
				e.Action = p4.Action{Name: a.Name, Args: slices.Clone(args[a.Name])}
			}
			for _, a := range s.prog.Actions() {
				for i := range e.Action.Args {
					if a.Name == e.Action.Name {
						e.Action.Args[i] = nearby(e.Action.Args[i], a.Params[i].Bits)
					}
				}
			}
			for i, k := range table.Keys {
				m := p4.Match{Value: nearby(like[r.IntN(len(like))].Key[i].Value, k.Bits)}
				switch k.Match {
				case p4.LPM:
					m.Prefix = r.IntN(k.Bits + 1)
				case p4.Ternary:
					mask := new(big.Int)
					for b := range k.Bits {
						mask.SetBit(mask, b, uint(min(1, r.IntN(8))))
					}
					m.Mask = mask.Bytes()
				case p4.Range:
					m.Mask = new(big.Int).Add(new(big.Int).SetBytes(m.Value), big.NewInt(r.Int64N(8))).Bytes()
				}
				e.Key = append(e.Key, m)
			}
			if table.Priority {
				e.Priority = math.MaxInt32 - int32(len(s.more)) - int32(r.IntN(2)*1000)
			}
			if _, err := sw.Insert(table.Name, e); err == nil {
				s.more = append(s.more, addition{table, e})
			}
		}
	}
}

// packets are those of a file and more made of them: on other ports, with bits
// flipped, cut off, extended, their checksums and ICRCs made right again or not.
func packets(in []input, more int, r *rand.Rand) []input {
	own := len(in)
	for range more {
		p := in[r.IntN(own)]
		p.frame = slices.Clone(p.frame)
		if r.IntN(4) == 0 {
			p.port = in[r.IntN(own)].port
		}
		switch r.IntN(5) {
		case 0:
			p.frame = p.frame[:min(len(p.frame), 14+r.IntN(max(1, len(p.frame)-13)))]
		case 1:
			p.frame = append(p.frame, make([]byte, 1+r.IntN(20))...)
		case 2, 3:
			for range min(len(p.frame), 1+r.IntN(3)) {
				p.frame[r.IntN(min(len(p.frame), 110))] ^= 1 << r.IntN(8)
			}
		}
		if r.IntN(2) == 0 {
			repair(p.frame)
		}
		in = append(in, p)
	}
	return append(in, last)
}

// last is the last frame.
var last = input{lastPort, bytes.Repeat([]byte{2}, 60)}

// repair makes the checksum of IPv4 and the ICRC right.
func repair(b []byte) {
	if len(b) < 34 || b[12] != 8 || b[13] != 0 || b[14] != 0x45 {
		return
	}
	b[24], b[25] = 0, 0
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(b[24:], ^uint16(sum))
	var f hdr.Frame
	if hdr.Parse(b, &f) == hdr.IsRoCE {
		hdr.SetICRC(b, &f)
	}
}

// withoutWalks leaves out what makes swordbox_mux recirculate: bmv2 takes other
// packets meanwhile.
func withoutWalks(t *testing.T, s *setup, in []input) []input {
	r := s.run(t)
	var kept []input
	for _, p := range in {
		before, err := r.sw.Count("mux_ingress.verdicts", 5)
		if err != nil {
			t.Fatal(err)
		}
		r.sw.Process(0, p.port, p.frame, func(uint32, []byte) {})
		after, _ := r.sw.Count("mux_ingress.verdicts", 5)
		if after == before {
			kept = append(kept, p)
			continue
		}
		r = s.run(t)
		for _, k := range kept {
			r.sw.Process(0, k.port, k.frame, func(uint32, []byte) {})
		}
	}
	return kept
}

// withoutLoops leaves out what the engine gives up: it would keep bmv2 busy for ever.
func withoutLoops(t *testing.T, s *setup, in []input) []input {
	r := s.run(t)
	return slices.DeleteFunc(in, func(p input) bool {
		before := r.sw.Dropped(p4.PassLimit)
		r.sw.Process(0, p.port, p.frame, func(uint32, []byte) {})
		return r.sw.Dropped(p4.PassLimit) != before
	})
}

func compareBmv2(t *testing.T, s *setup, json string, in []input) {
	r := s.run(t)
	want := map[uint32][]outcome{}
	frames := 0
	// In psa_switch frames that come again, and clones of egress, stand behind the frames that came meanwhile.
	overtaken, egress := false, false
	if s.prog.Arch() == "psa" {
		r.sw.SetTrace(func(e p4.Event) {
			switch e.Kind {
			case p4.EventStage:
				if stage := r.prog.Describe(e); stage != "deparser" {
					egress = stage == "egress"
				}
			case p4.EventClone:
				overtaken = overtaken || egress
			case p4.EventResubmit, p4.EventRecirculate:
				overtaken = true
			}
		})
	}
	for i, p := range in {
		r.sw.Process(0, p.port, p.frame, func(n uint32, b []byte) {
			if n < 1<<31 { // bmv2 attaches nothing to higher ports
				want[n] = append(want[n], outcome{slices.Clone(b), in[i]})
				frames++
			}
		})
	}
	ports := slices.Sorted(maps.Keys(want))
	for _, p := range in {
		if !slices.Contains(ports, p.port) {
			ports = append(ports, p.port)
		}
	}
	slices.Sort(ports)

	b := startBmv2(t, s.prog.Arch(), json, ports, in)
	b.configure(s, r)
	b.last(in[len(in)-1])
	b.wait(frames)

	for _, n := range ports {
		got := b.frames(n)
		if overtaken {
			slices.SortFunc(got, bytes.Compare)
			slices.SortFunc(want[n], func(a, b outcome) int { return bytes.Compare(a.frame, b.frame) })
		}
		for i := range max(len(got), len(want[n])) {
			switch {
			case i >= len(got):
				t.Fatalf("port %d: bmv2 gives %d frames, the engine %d; the next is of %d: %x\n\tgives %x", n, len(got), len(want[n]), want[n][i].of.port, want[n][i].of.frame, want[n][i].frame)
			case i >= len(want[n]):
				t.Fatalf("port %d: bmv2 gives %d frames, the engine %d; the next is %x", n, len(got), len(want[n]), got[i])
			case !bytes.Equal(got[i], want[n][i].frame):
				p := want[n][i].of
				t.Fatalf("port %d: frame %d, of %x on port %d:\n\tbmv2   %x\n\tengine %x", n, i+1, p.frame, p.port, got[i], want[n][i].frame)
			}
		}
	}
	compareCounters(t, s, r, b)
	for _, a := range s.prog.Registers() {
		for i, shown := 0, 0; i < a.Size && shown < 20; i++ {
			value, err := r.sw.Register(a.Name, i)
			if err != nil {
				t.Fatal(err)
			}
			want := new(big.Int).SetBytes(value)
			if i > 3 && want.Sign() == 0 {
				continue
			}
			shown++
			if want.BitLen() > 63 { // the command line shows no more
				want.SetUint64(math.MaxInt64)
			}
			same := func(got *big.Int) bool {
				if strings.HasSuffix(a.Name, "_seen") { // a time
					return got.Sign() == want.Sign()
				}
				return got.Cmp(want) == 0
			}
			got := b.register(a.Name, i)
			for ; !same(got) && b.patient(); got = b.register(a.Name, i) {
			}
			if !same(got) {
				t.Errorf("register %s(%d): bmv2 %v, engine %v", a.Name, i, got, want)
			}
		}
	}
	t.Logf("%d packets, %d frames", len(in), frames)
}

// compareCounters compares arrays of counters, and those of entries, which both have in the order in which they were added.
func compareCounters(t *testing.T, s *setup, r *run, b *bmv2) {
	compare := func(name string, i int, want p4.Count) {
		got := b.count(name, i)
		for ; got != want && b.patient(); got = b.count(name, i) {
		}
		if got != want {
			t.Errorf("counter %s(%d): bmv2 %+v, engine %+v", name, i, got, want)
		}
	}
	for _, c := range s.prog.Counters() {
		for i := range c.Size {
			want, err := r.sw.Count(c.Name, i)
			if err != nil {
				t.Fatal(err)
			}
			if i <= 16 || want.Packets != 0 {
				compare(c.Name, i, want)
			}
		}
	}
	for table, name := range s.direct {
		var all []p4.Handle
		if err := r.sw.Entries(table, func(h p4.Handle, _ p4.Entry) bool {
			all = append(all, h)
			return len(all) < 16
		}); err != nil {
			t.Fatal(err)
		}
		for i, h := range all {
			want, err := r.sw.EntryCount(table, h)
			if err != nil {
				t.Fatal(err)
			}
			compare(name, i, want)
		}
	}
}

// bmv2 is a running switch with its command line.
type bmv2 struct {
	t     *testing.T
	dir   string
	pipe  *os.File
	in    io.Writer
	out   *bufio.Reader
	ports []uint32
	log   *bytes.Buffer
	end   time.Time
}

// configure tells the switch what r was told.
func (b *bmv2) configure(s *setup, r *run) {
	b.ask(fmt.Sprintf("set_queue_depth %d", 1<<20)) // a full queue would lose frames
	for i := range s.config {
		if line := b.command(r, &s.config[i]); line != "" {
			b.ask(line)
		}
	}
	for _, a := range s.more {
		b.ask(p4.BMv2Add(a.table, a.entry))
	}
	for _, line := range s.lines {
		b.ask(line)
	}
}

// start is long before any frame's time.
const start = 1_000_000_000

func pcapHeader() []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(
		binary.LittleEndian.AppendUint64(nil, 0x00040002_a1b2c3d4), 0), 65535), 1)
}

func pcapRecord(b []byte, second int, frame []byte) []byte {
	for _, v := range []int{start + second, 0, len(frame), len(frame)} {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return append(b, frame...)
}

func startBmv2(t *testing.T, arch, json string, ports []uint32, in []input) *bmv2 {
	name := switches[arch]
	return startSwitch(t, exec.Command(name), name+"_CLI", json, ports, in)
}

// startSwitch starts a switch with its command line cli; options are what stands behind the program.
func startSwitch(t *testing.T, cmd *exec.Cmd, cli, json string, ports []uint32, in []input, options ...string) *bmv2 {
	b := &bmv2{t: t, dir: t.TempDir(), ports: ports, log: new(bytes.Buffer), end: time.Now().Add(time.Minute)}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	thrift := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	listener.Close()
	args := []string{"--use-files", "0", "--thrift-port", thrift, "--device-id", thrift}
	for _, n := range ports {
		if n != lastPort {
			file := pcapHeader()
			for i, p := range in[:len(in)-1] {
				if p.port == n {
					file = pcapRecord(file, i, p.frame)
				}
			}
			if err := os.WriteFile(b.file(n, "in"), file, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		args = append(args, "-i", fmt.Sprintf("%d@%s", n, filepath.Join(b.dir, strconv.Itoa(int(n)))))
	}
	if err := syscall.Mkfifo(b.file(lastPort, "in"), 0o600); err != nil {
		t.Fatal(err)
	}
	if b.pipe, err = os.OpenFile(b.file(lastPort, "in"), os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := b.pipe.Write(pcapHeader()); err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs(json)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Args = slices.Concat(cmd.Args, args, []string{path}, options)
	b.run(cmd)
	for {
		c, err := net.Dial("tcp", "127.0.0.1:"+thrift)
		if err == nil {
			c.Close()
			break
		}
		state, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		if time.Now().After(b.end) || bytes.Contains(state, []byte(") Z ")) { // it has ended
			t.Fatalf("%s does not answer: %v\n%s", cmd.Path, err, b.log)
		}
		time.Sleep(10 * time.Millisecond)
	}
	line := exec.Command(cli, "--thrift-port", thrift)
	b.in, err = line.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := line.StdoutPipe() // ends with the process
	if err != nil {
		t.Fatal(err)
	}
	b.out = bufio.NewReader(out)
	b.run(line)
	b.answer()
	return b
}

func (b *bmv2) file(n uint32, direction string) string {
	return filepath.Join(b.dir, fmt.Sprintf("%d_%s.pcap", n, direction))
}

func (b *bmv2) run(cmd *exec.Cmd) {
	cmd.Dir = b.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if cmd.Stdout == nil {
		cmd.Stdout = b.log
	}
	cmd.Stderr = b.log
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
}

const prompt = "RuntimeCmd: "

// answer reads up to the next prompt.
func (b *bmv2) answer() string {
	var text []byte
	for !bytes.HasSuffix(text, []byte(prompt)) {
		c, err := b.out.ReadByte()
		if err != nil {
			b.t.Fatalf("the command line: %v after %s\n%s", err, text, b.log)
		}
		text = append(text, c)
	}
	return string(text)
}

// ask gives a command, and fails when it is refused.
func (b *bmv2) ask(line string) string {
	b.t.Helper()
	if _, err := io.WriteString(b.in, line+"\n"); err != nil {
		b.t.Fatal(err)
	}
	text := b.answer()
	if strings.Contains(text, "Error") || strings.Contains(text, "Invalid") {
		b.t.Fatalf("bmv2 refuses %s: %s", line, text)
	}
	return text
}

// command is a statement for the command line.
func (b *bmv2) command(r *run, s *Statement) string {
	b.t.Helper()
	switch s.Op {
	case Add:
		t, e, err := r.entry(s)
		if err != nil {
			b.t.Fatal(err)
		}
		return p4.BMv2Add(t, e)
	case SetDefault:
		t, err := r.table(s.Name)
		if err != nil {
			b.t.Fatal(err)
		}
		a, err := action(t, s)
		if err != nil {
			b.t.Fatal(err)
		}
		return "table_set_default " + t.Name + " " + a.Name + p4.BMv2Args(a)
	case Command:
		text := s.Command
		if s.Name != "" {
			text += " " + s.Name
		}
		for _, n := range s.Numbers {
			text += " " + n.String()
		}
		for _, r := range s.Rates {
			text += fmt.Sprintf(" %g:%d", r.PerMicrosecond, r.Burst)
		}
		return text
	}
	return ""
}

// last sends the last frame.
func (b *bmv2) last(p input) {
	if _, err := b.pipe.Write(pcapRecord(nil, 1<<20, p.frame)); err != nil {
		b.t.Fatal(err)
	}
	b.pipe.Close()
}

// wait waits until as many frames have come out.
func (b *bmv2) wait(frames int) {
	for quiet := 0; quiet < 5; {
		n := 0
		for _, p := range b.ports {
			n += len(b.frames(p))
		}
		if n >= frames || time.Now().After(b.end) {
			quiet++
		}
		b.ask("show_tables")
		time.Sleep(20 * time.Millisecond)
	}
}

// patient waits a moment, for frames that do not leave may still be under way;
// false: it is too late.
func (b *bmv2) patient() bool {
	time.Sleep(20 * time.Millisecond)
	return time.Now().Before(b.end)
}

// frames are those that left by a port.
func (b *bmv2) frames(n uint32) (all [][]byte) {
	file, err := os.ReadFile(b.file(n, "out"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		b.t.Fatal(err)
	}
	for file = file[min(24, len(file)):]; len(file) >= 16; {
		size := int(binary.LittleEndian.Uint32(file[8:]))
		if len(file) < 16+size {
			break
		}
		all = append(all, file[16:16+size])
		file = file[16+size:]
	}
	return all
}

var (
	countText    = regexp.MustCompile(`\((\d+) bytes, (\d+) packets\)`)
	registerText = regexp.MustCompile(`\]= *(\d+)`)
)

func (b *bmv2) count(name string, i int) p4.Count {
	b.t.Helper()
	text := b.ask(fmt.Sprintf("counter_read %s %d", name, i))
	m := countText.FindStringSubmatch(text)
	if m == nil {
		b.t.Fatalf("counter %s: %s", name, text)
	}
	size, _ := strconv.ParseUint(m[1], 10, 64)
	packets, _ := strconv.ParseUint(m[2], 10, 64)
	return p4.Count{Packets: packets, Bytes: size}
}

func (b *bmv2) register(name string, i int) *big.Int {
	b.t.Helper()
	text := b.ask(fmt.Sprintf("register_read %s %d", name, i))
	m := registerText.FindStringSubmatch(text)
	if m == nil {
		b.t.Fatalf("register %s: %s", name, text)
	}
	v, _ := new(big.Int).SetString(m[1], 10)
	return v
}
