// Package xdp runs flows that functions have decided (package offload) in the kernel, by an XDP program in front
// of the programs that ports have.
//
// One program serves all flows: it interprets entries, which lie in memory that the process shares. An index
// leads from a frame's key to its entry. The program claims the entry by one word while it runs a frame, and the
// process claims it when it ends the entry or looks at a segment itself. Nobody therefore sees half of a change,
// and once an entry is withdrawn the program has no frame in hand that uses it.
//
// The program stands in front of an interface's own one (afxdp.Front). It is gone when the process ends, however
// that ends.
package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/offload"
	"github.com/quillon/quillon/nf/port/afxdp"
)

const (
	// maxIndex is one more than the highest interface index that a port may have.
	maxIndex = 1 << 16
	// MaxPorts is the number of ports that there may be; port numbers are below it.
	MaxPorts = 64
)

func be16(v uint16) uint16 {
	return binary.NativeEndian.Uint16([]byte{byte(v >> 8), byte(v)})
}

// Kernel is the program and its maps. It implements offload.Kernel.
type Kernel struct {
	prog    *ebpf.Program
	maps    []*ebpf.Map
	mems    [][]byte
	slots   []offload.Slot
	sixes   []offload.Addrs
	meters  []offload.Meter
	control *offload.Control
	in      []uint32
	flows   index
	tunnels *ebpf.Map
	headers *ebpf.Map
	counts  *ebpf.Map
	devices *ebpf.Map
	own     *ebpf.Map
	told    *[2]int64 // what time it is for the program, by the coarse clock and by the exact one; nil: it asks the kernel
}

// New loads the program, with room for that number of entries. The caller closes the Kernel.
func New(entries int) (*Kernel, error) { return newKernel(entries, false) }

// newKernel makes a Kernel. With told, for tests, its program reads the time from k.told instead of the kernel's
// clocks.
func newKernel(entries int, told bool) (_ *Kernel, err error) {
	k := &Kernel{}
	defer func() {
		if err != nil {
			_ = k.Close()
		}
	}()
	made := func(s ebpf.MapSpec) (m *ebpf.Map) {
		if err != nil {
			return nil
		}
		if m, err = ebpf.NewMap(&s); err != nil {
			err = fmt.Errorf("make the map %s of %d entries: %w", s.Name, s.MaxEntries, err)
			return nil
		}
		k.maps = append(k.maps, m)
		return m
	}
	memory := func(name string, size int) (m *ebpf.Map, mem []byte) {
		m = made(ebpf.MapSpec{Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(size), MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE})
		if err != nil {
			return nil, nil
		}
		page := os.Getpagesize()
		mem, err = unix.Mmap(m.FD(), 0, (size+page-1)/page*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err == nil {
			k.mems = append(k.mems, mem)
		}
		return m, mem
	}
	in, inMem := memory("flow_in", 4*maxIndex)
	control, controlMem := memory("flow_control", int(unsafe.Sizeof(offload.Control{})))
	slots, slotMem := memory("flow_slots", int(unsafe.Sizeof(slot))*entries)
	sixes, sixMem := memory("flow_sixes", int(unsafe.Sizeof(offload.Addrs{}))*entries)
	form := shape{entries: entries, paces: min(2*entries+1, offload.MaxMeters), buckets: bucketsOf(entries), secret: newSecret()}
	flows, flowMem := memory("flow_index", 4*wordsOf*form.buckets)
	meters, meterMem := memory("flow_meters", form.paces<<offload.MeterBits)
	var clock *ebpf.Map
	var clockMem []byte
	if told {
		clock, clockMem = memory("flow_clock", 16)
	}
	k.tunnels = made(ebpf.MapSpec{Name: "flow_tunnels", Type: ebpf.Hash, KeySize: offload.TunnelKeyLen, ValueSize: 12, MaxEntries: offload.MaxTunnels, Flags: unix.BPF_F_NO_PREALLOC})
	k.headers = made(ebpf.MapSpec{Name: "flow_headers", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(unsafe.Sizeof(offload.Template{})), MaxEntries: offload.MaxTunnels})
	k.counts = made(ebpf.MapSpec{Name: "flow_counts", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: countsSize, MaxEntries: 1})
	k.devices = made(ebpf.MapSpec{Name: "flow_devices", Type: ebpf.DevMap, KeySize: 4, ValueSize: 4, MaxEntries: MaxPorts})
	k.own = made(ebpf.MapSpec{Name: "flow_own", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: MaxPorts})
	if err != nil {
		return nil, err
	}
	k.in = unsafe.Slice((*uint32)(unsafe.Pointer(&inMem[0])), maxIndex)
	k.control = (*offload.Control)(unsafe.Pointer(&controlMem[0]))
	k.slots = unsafe.Slice((*offload.Slot)(unsafe.Pointer(&slotMem[0])), entries)
	k.sixes = unsafe.Slice((*offload.Addrs)(unsafe.Pointer(&sixMem[0])), entries)
	k.meters = unsafe.Slice((*offload.Meter)(unsafe.Pointer(&meterMem[0])), form.paces)
	k.flows = index{words: unsafe.Slice((*uint32)(unsafe.Pointer(&flowMem[0])), wordsOf*form.buckets), slots: k.slots, buckets: form.buckets, secret: form.secret}
	m := descriptors{in: in.FD(), control: control.FD(), flows: flows.FD(), slots: slots.FD(), sixes: sixes.FD(), meters: meters.FD(), tunnels: k.tunnels.FD(), templates: k.headers.FD(),
		counts: k.counts.FD(), devices: k.devices.FD(), own: k.own.FD()}
	if told {
		m.clock, k.told = clock.FD(), (*[2]int64)(unsafe.Pointer(&clockMem[0]))
	}
	code := program(m, form)
	k.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: ProgramName, Type: ebpf.XDP, License: "GPL", Instructions: code, Flags: unix.BPF_F_XDP_HAS_FRAGS})
	if err != nil {
		return nil, fmt.Errorf("load the program for flows: %w", err)
	}
	return k, nil
}

// ProgramName is the program's name, as bpftool shows it.
const ProgramName = afxdp.FlowsProgram

// Close frees the program, its maps and the shared memory.
func (k *Kernel) Close() error {
	var errs []error
	if k.prog != nil {
		errs = append(errs, k.prog.Close())
	}
	for _, m := range k.mems {
		errs = append(errs, unix.Munmap(m))
	}
	for _, m := range k.maps {
		errs = append(errs, m.Close())
	}
	*k = Kernel{}
	return errors.Join(errs...)
}

// SetPort makes the interface of that index the graph's port of that number: frames that come in there have this
// port in their keys, and frames to the port leave there. Frames are not run until Turn is called.
func (k *Kernel) SetPort(port, index int) error {
	if index < 0 || index >= maxIndex || port < 0 || port >= MaxPorts {
		return fmt.Errorf("interface %d cannot be port %d: interface indices are below %d and ports below %d", index, port, maxIndex, MaxPorts)
	}
	if err := k.devices.Put(uint32(port), uint32(index)); err != nil {
		return fmt.Errorf("send to interface %d: %w", index, err)
	}
	k.Turn(port, index, false)
	return nil
}

// Turn switches on or off that frames are run which come in at the interface of a port.
func (k *Kernel) Turn(port, index int, on bool) {
	w := inKnown | uint32(port)
	if on {
		w |= inOn
	}
	atomic.StoreUint32(&k.in[index], w)
}

// Slots implements offload.Kernel.
func (k *Kernel) Slots() []offload.Slot { return k.slots }

// Sixes implements offload.Kernel.
func (k *Kernel) Sixes() []offload.Addrs { return k.sixes }

// Meters implements offload.Kernel.
func (k *Kernel) Meters() []offload.Meter { return k.meters }

// Control implements offload.Kernel.
func (k *Kernel) Control() *offload.Control { return k.control }

// Put implements offload.Kernel.
func (k *Kernel) Put(slot, dir int) error { return k.flows.put(k.slots[slot].Dirs[dir].Key, slot, dir) }

// Delete implements offload.Kernel.
func (k *Kernel) Delete(slot, dir int) { k.flows.remove(k.slots[slot].Dirs[dir].Key, slot, dir) }

// PutTunnel implements offload.Kernel.
func (k *Kernel) PutTunnel(key [offload.TunnelKeyLen]byte, id uint16, local [6]byte, x *offload.Template) error {
	b := make([]byte, 12)
	binary.NativeEndian.PutUint32(b, uint32(id))
	copy(b[4:], local[:])
	t := unsafe.Slice((*byte)(unsafe.Pointer(x)), unsafe.Sizeof(*x))
	return errors.Join(k.headers.Put(uint32(id), t), k.tunnels.Put(key[:], b))
}

// DeleteTunnel implements offload.Kernel.
func (k *Kernel) DeleteTunnel(key [offload.TunnelKeyLen]byte) { _ = k.tunnels.Delete(key[:]) }

// Clock implements offload.Kernel.
func (k *Kernel) Clock() int64 { return clock.Kernel() }

// Paths sets sums[i] to what all processors have counted for path i.
func (k *Kernel) Paths(sums []offload.Counts) error {
	each, err := k.counted()
	if err != nil {
		return err
	}
	for i := range sums {
		sums[i] = offload.Counts{}
		for _, b := range each {
			sums[i].Packets += binary.NativeEndian.Uint64(b[countsPaths+16*i:])
			sums[i].Bytes += binary.NativeEndian.Uint64(b[countsPaths+16*i+8:])
		}
	}
	return nil
}

// counted returns the counts of each processor, in the layout that countsPaths and countsSize describe.
func (k *Kernel) counted() (each [][]byte, err error) {
	if err = k.counts.Lookup(uint32(0), &each); err != nil {
		err = fmt.Errorf("read the counts of frames: %w", err)
	}
	return each, err
}

// Outcomes returns how many frames that reached the program had each outcome, by its name.
func (k *Kernel) Outcomes() (map[string]uint64, error) {
	each, err := k.counted()
	if err != nil {
		return nil, err
	}
	all := map[string]uint64{}
	for _, b := range each {
		for i, name := range outcomeNames {
			all[name] += binary.NativeEndian.Uint64(b[8*i:])
		}
		for at := countsPaths; at < countsSize; at += 16 {
			all[offload.Finished] += binary.NativeEndian.Uint64(b[at:])
		}
	}
	return all, nil
}
