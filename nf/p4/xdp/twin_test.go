package xdp

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/p4"
	"github.com/quillon/quillon/nf/p4/stf"
)

// loopback is the index of the interface that frames of test runs come in by.
const loopback = 1

// closedPorts have no interface.
var closedPorts = []uint32{510, 7}

// twin is a program in the kernel with its engine, and the engine alone, with the same entries.
type twin struct {
	testing.TB
	x       *Executor
	sw, ref *p4.Switch
	now     clock.Time
	kernel  int // frames that came to their end in the kernel
	copies  int // by a set of ports
	engine  map[string]int
}

// requireKernel skips a test where programs cannot be loaded, and keeps it on one processor.
func requireKernel(t testing.TB) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	if errors.Is(err, unix.EPERM) {
		t.Skipf("programs of the kernel cannot be loaded: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = m.Close()
	if err := features.HaveProgramHelper(ebpf.XDP, asm.FnXdpGetBuffLen); errors.Is(err, ebpf.ErrNotSupported) {
		t.Skipf("this kernel is too old, 5.18 would do: %v", err)
	}
	runtime.LockOSThread() // for ever: the thread ends with the test's goroutine, and its processor with it
	pin(t, 0)
}

// pin keeps the thread on a processor.
func pin(t testing.TB, cpu int) {
	t.Helper()
	var one unix.CPUSet
	one.Set(cpu)
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Error(err)
	}
}

func newTwin(t testing.TB, src []byte) *twin {
	t.Helper()
	return newTwinOf(t, src, false)
}

// newEditedTwin makes a twin whose program is changed before it is loaded.
func newEditedTwin(t testing.TB, src []byte, edit func(m descriptors, code asm.Instructions) asm.Instructions) *twin {
	t.Helper()
	return newTwinWith(t, src, Options{edit: edit})
}

// newTwinOf makes a twin whose program may outlive its process. Frames for the engine then go to a program of the interface, which
// passes them.
func newTwinOf(t testing.TB, src []byte, outlives bool) *twin {
	t.Helper()
	return newTwinWith(t, src, Options{Outlives: outlives})
}

func newTwinWith(t testing.TB, src []byte, o Options) *twin {
	t.Helper()
	requireKernel(t)
	prog, tree, err := p4.LoadTree(src)
	if err != nil {
		t.Fatal(err)
	}
	w := &twin{TB: t, engine: map[string]int{}}
	for _, to := range []**p4.Switch{&w.sw, &w.ref} {
		if *to, err = p4.NewSwitch(prog, p4.Config{}); err != nil {
			t.Fatal(err)
		}
	}
	to := map[uint32]Target{}
	for n := range uint32(devices) {
		if !slices.Contains(closedPorts, n) {
			to[n] = Target{loopback, 1 << 16}
		}
	}
	o.From, o.To = []Source{{Index: loopback, Port: 1}}, to
	w.x, err = New(tree, w.sw.Config(), o)
	if err != nil && strings.Contains(err.Error(), "a jump over") {
		t.Skip(err) // of a parser that is unrolled into very many instances
	}
	var v *ebpf.VerifierError
	if errors.As(err, &v) {
		t.Fatalf("%+v", v)
	}
	if none := (errNothing{}); errors.As(err, &none) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.x.Close() })
	if o.Outlives {
		pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.XDP, Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, xdpPass), asm.Return()}, Flags: unix.BPF_F_XDP_HAS_FRAGS})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pass.Close() })
		if err := w.x.Own(0, pass); err != nil {
			t.Fatal(err)
		}
	}
	w.x.Begin(w.sw, 0)
	return w
}

// port has frames come in at a port of the program.
func (x *Executor) port(number uint32) {
	x.from[0].Port = number
	x.tell(0)
}

// both does the same to both switches.
func (w *twin) both(f func(sw *p4.Switch) error) {
	w.Helper()
	a, b := f(w.sw), f(w.ref)
	if fmt.Sprint(a) != fmt.Sprint(b) {
		w.Fatalf("one switch: %v, the other: %v", a, b)
	}
}

// sent is a frame that left.
type sent struct {
	port  uint32
	frame string
}

func process(sw *p4.Switch, now clock.Time, port uint32, frame []byte) (out []sent, r p4.Result) {
	r = sw.Process(now, port, frame, func(port uint32, frame []byte) { out = append(out, sent{port, string(frame)}) })
	return out, r
}

// inKernel runs a frame in the kernel.
func (w *twin) inKernel(port uint32, frame []byte) (outcome int, to uint32, out []byte, code uint32) {
	w.Helper()
	w.x.port(port)
	w.x.clock.store(0, uint64(w.now))
	w.x.clock.store(1, 0)
	opt := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	code, err := w.x.prog.Run(opt)
	if err != nil {
		w.Fatal(err)
	}
	if t := w.x.turnWord; t != nil && *t.word(0) != 0 {
		w.Fatalf("port %d, frame %x: the registers stay taken, code %d", port, frame, code)
	}
	var each [][]byte
	if err := w.x.state.Lookup(uint32(0), &each); err != nil {
		w.Fatal(err)
	}
	word := func(at int) uint64 { return binary.NativeEndian.Uint64(each[0][at:]) }
	return int(word(atOutcome)), uint32(word(atPort)), opt.DataOut, code
}

// frame runs a frame in both and compares.
func (w *twin) frame(port uint32, frame []byte) {
	w.Helper()
	if len(frame) < 14 || len(frame) > 3000 {
		return // the kernel's test runs take no others
	}
	w.now += 1000
	want, r := process(w.ref, w.now, port, frame)
	outcome, to, out, code := w.inKernel(port, frame)
	var got []sent
	how := ""
	switch {
	case outcome == Forwarded:
		how = "forwarded by the kernel"
		for _, p := range w.ports(port, to) {
			got = append(got, sent{p, string(out)})
		}
		w.kernel++
		if code != xdpRedirect {
			w.Fatalf("forwarded, and the program returned %d", code)
		}
	case outcome >= ParserError && outcome <= NoReplica:
		how = "dropped by the kernel: " + outcomeNames[outcome]
		w.kernel++
		if code != xdpDrop || len(want) != 0 || r.Dropped.String() != outcomeNames[outcome] {
			w.Errorf("port %d, frame %x: %s, code %d; the engine: %v %v", port, frame, how, code, want, r.Dropped)
		}
	case outcome >= firstReason:
		why := w.x.reasons[outcome-firstReason].String()
		how = "given to the engine: " + why
		w.engine[why]++
		if code != xdpPass || !bytes.Equal(out, frame) {
			w.Errorf("port %d, frame %x: %s, code %d, as %x", port, frame, how, code, out)
		}
		got, _ = process(w.sw, w.now, port, frame)
	default:
		w.Fatalf("port %d, frame %x: outcome %d", port, frame, outcome)
	}
	if !slices.Equal(got, want) {
		w.Errorf("port %d, frame %x: %s\n got %s\nwant %s", port, frame, how, shown(got), shown(want))
	}
	w.sw.Advance(w.now)
}

// ports returns the ports that a frame leaves by.
func (w *twin) ports(from, to uint32) (all []uint32) {
	if to < toList {
		return []uint32{to}
	}
	words := w.x.lists.words()[listWords*(to&(maxLists-1)):]
	set := w.x.bySet[words[0]>>32].ports
	for i := 0; i < len(set); i += 4 {
		p := binary.NativeEndian.Uint32([]byte(set[i:]))
		if p != from || to&notIngress == 0 {
			all = append(all, p)
		}
	}
	w.copies += len(all)
	return all
}

func shown(all []sent) string {
	s := ""
	for _, x := range all {
		s += fmt.Sprintf("[port %d: %x]", x.port, x.frame)
	}
	return s
}

// counts compares all that both have counted, and once more when the kernel has ended, whose counts are the Switch's then.
func (w *twin) counts() {
	w.Helper()
	w.compare()
	w.x.End()
	w.compare()
}

func (w *twin) compare() {
	w.Helper()
	p := w.sw.Program()
	for _, a := range p.Counters() {
		for i := range min(a.Size, 1024) {
			got, _ := w.sw.Count(a.Name, i)
			if want, _ := w.ref.Count(a.Name, i); got != want {
				w.Errorf("counter %s %d: %v, want %v", a.Name, i, got, want)
			}
		}
	}
	for _, a := range p.Registers() {
		for i := range a.Size {
			got, _ := w.sw.Register(a.Name, i)
			if want, _ := w.ref.Register(a.Name, i); !bytes.Equal(got, want) {
				w.Errorf("register %s %d: %x, want %x", a.Name, i, got, want)
			}
		}
	}
	for _, t := range p.Tables() {
		if t.Counters {
			got, _ := w.sw.EntryCount(t.Name, p4.DefaultEntry)
			if want, _ := w.ref.EntryCount(t.Name, p4.DefaultEntry); got != want {
				w.Errorf("table %s, default entry: %v, want %v", t.Name, got, want)
			}
		}
		_ = w.ref.Entries(t.Name, func(h p4.Handle, e p4.Entry) bool {
			if t.Counters {
				got, _ := w.sw.EntryCount(t.Name, h)
				if want, _ := w.ref.EntryCount(t.Name, h); got != want {
					w.Errorf("table %s, entry %v: %v, want %v", t.Name, e, got, want)
				}
			}
			if t.Timeout {
				got, _ := w.sw.EntryIdle(t.Name, h)
				want, _ := w.ref.EntryIdle(t.Name, h)
				if got > want { // what the kernel hit counts as hit when it is asked for
					w.Errorf("table %s, entry %v: idle for %v, want %v", t.Name, e, got, want)
				}
			}
			return true
		})
	}
	var total uint64
	all, err := w.x.Outcomes()
	if err != nil {
		w.Fatal(err)
	}
	engine := 0
	for _, o := range all {
		total += o.Frames
		if o.Engine && int(o.Frames) != w.engine[o.Name] {
			w.Errorf("%s: the kernel counted %d frames, there were %d", o.Name, o.Frames, w.engine[o.Name])
		}
	}
	for _, n := range w.engine {
		engine += n
	}
	if int(total) != w.kernel+engine {
		w.Errorf("%d outcomes of %d frames", total, w.kernel+engine)
	}
	if s := w.x.Stopped(); len(s) > 0 {
		w.Logf("stopped: %v", s)
	}
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// samples are programs with their STF files.
func samples(t testing.TB) map[string][]string {
	all := map[string][]string{}
	files, _ := filepath.Glob("../../../tests/p4/*/*.stf")
	for _, f := range files {
		name := "../../../p4src/" + filepath.Base(filepath.Dir(f)) + ".json"
		all[name] = append(all[name], f)
	}
	more, _ := filepath.Glob("../packettrace/testdata/*.stf")
	if dir := os.Getenv("QUILLON_P4C_SAMPLES"); dir != "" {
		x, _ := filepath.Glob(filepath.Join(dir, "*.stf"))
		more = append(more, x...)
	}
	for _, f := range more {
		name := strings.TrimSuffix(f, ".stf") + ".json"
		all[name] = append(all[name], f)
	}
	if len(all) < 5 {
		t.Fatalf("%d programs with STF files were found", len(all))
	}
	return all
}

func statements(t testing.TB, name string) []stf.Statement {
	t.Helper()
	all, err := stf.Parse(bytes.NewReader(read(t, name)))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// sampleFrames are the frames of all STF files.
func sampleFrames(t testing.TB) map[string][]sent {
	out := map[string][]sent{}
	for _, files := range samples(t) {
		for _, f := range files {
			for _, s := range statements(t, f) {
				if s.Op != stf.Packet {
					continue
				}
				b, err := hex.DecodeString(s.Data)
				if err != nil {
					t.Fatal(err)
				}
				out[f] = append(out[f], sent{s.Port, string(b)})
			}
		}
	}
	return out
}

// TestSamples runs the frames of all STF files, as they are and with bytes changed, with the entries of the file, on both executors.
func TestSamples(t *testing.T) {
	frames := sampleFrames(t)
	for json, files := range samples(t) {
		for _, f := range files {
			t.Run(filepath.Base(json)+"/"+filepath.Base(f), func(t *testing.T) {
				if _, tree, err := p4.LoadTree(read(t, json)); err == nil && tree.Architecture != "" {
					t.Skipf("no program for v1model, but for %s", tree.Architecture)
				}
				w := newTwin(t, read(t, json))
				all := statements(t, f)
				w.both(func(sw *p4.Switch) error { return stf.Configure(sw, all) })
				rnd := newRandom(t)
				for range min(rounds(t, 20), 20) {
					for _, s := range frames[f] {
						w.frame(s.port, []byte(s.frame))
						w.frame(s.port, rnd.change([]byte(s.frame)))
					}
				}
				for of := range frames {
					for _, s := range frames[of] {
						w.frame(s.port, rnd.change([]byte(s.frame)))
					}
				}
				w.counts()
				t.Logf("%d frames in the kernel, to the engine: %v", w.kernel, w.engine)
			})
		}
	}
}
