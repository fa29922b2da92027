package xsk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/nf/port"
)

// Set is the set of bound queue pairs of a filter that is Bound: a hash map that the process
// changes and programs read. The kernel keeps it as long as a process or a program has it.
type Set struct{ m *ebpf.Map }

// setKey names a queue pair as frames to it do: the destination address (IPv4
// mapped into IPv6), a zero byte, and the QPN, all in network byte order.
type setKey [16 + 4]byte

const setMapName = "quillon_bound"

var (
	errQueuePair = errors.New("a queue pair to bind needs an address and a QPN of 24 bits")
	errSetFull   = fmt.Errorf("%d queue pairs are bound, which is all that can be", port.MaxBound)
)

func keyOf(q port.QueuePair) (k setKey, err error) {
	if !q.Addr.IsValid() || q.QPN >= 1<<24 {
		return k, errQueuePair
	}
	*(*[16]byte)(k[:]) = hostKey(q.Addr)
	binary.BigEndian.PutUint32(k[16:], q.QPN)
	return k, nil
}

// NewSet makes an empty set.
func NewSet() (*Set, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: setMapName, Type: ebpf.Hash, KeySize: uint32(len(setKey{})), ValueSize: 1, MaxEntries: port.MaxBound,
	})
	if err != nil {
		return nil, fmt.Errorf("make the set of bound queue pairs: %w", err)
	}
	return &Set{m}, nil
}

// Same reports whether s and o are one map in the kernel. It is false if either is nil or cannot be asked.
func (s *Set) Same(o *Set) bool {
	if s == nil || o == nil {
		return false
	}
	a, err := s.m.Info()
	b, err2 := o.m.Info()
	if err != nil || err2 != nil {
		return false
	}
	i, _ := a.ID()
	k, _ := b.ID()
	return i == k
}

// Put adds q to the set, or takes it out if on is false. It makes one system call and allocates nothing.
func (s *Set) Put(q port.QueuePair, on bool) error {
	k, err := keyOf(q)
	if err != nil {
		return err
	}
	return s.put(&k, on)
}

// elemAttr is the part of the kernel's union bpf_attr that serves to change an
// element of a map.
type elemAttr struct {
	fd         uint32
	_          uint32
	key, value unsafe.Pointer
	flags      uint64
}

// This line does not compile where a pointer is shorter than the kernel's
// aligned_u64.
const _ = -(unsafe.Sizeof(elemAttr{}) ^ 32)

// put changes the map without the Go scheduler: nothing in the kernel blocks.
func (s *Set) put(k *setKey, on bool) error {
	value := byte(1)
	cmd, attr := uintptr(unix.BPF_MAP_DELETE_ELEM), elemAttr{fd: uint32(s.m.FD()), key: unsafe.Pointer(k)}
	if on {
		cmd, attr.value = unix.BPF_MAP_UPDATE_ELEM, unsafe.Pointer(&value)
	}
	_, _, e := unix.RawSyscall(unix.SYS_BPF, cmd, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
	switch {
	case e == 0, e == unix.ENOENT && !on:
		return nil
	case e == unix.E2BIG:
		return errSetFull
	case e == unix.EBADF:
		return port.ErrClosed
	}
	return e
}

func keysOf(qs []port.QueuePair) (map[setKey]bool, error) {
	keys := make(map[setKey]bool, len(qs))
	for _, q := range qs {
		k, err := keyOf(q)
		if err != nil {
			return nil, err
		}
		keys[k] = true
	}
	return keys, nil
}

// Clear takes all queue pairs out of the set.
func (s *Set) Clear() error {
	have, err := s.keys()
	for i := range have {
		if err == nil {
			err = s.put(&have[i], false)
		}
	}
	return err
}

// Replace takes those of was out of the set that are not among is, and puts all of is into it. Queue pairs that were in
// the set and stay are in it all the time. If one of is is not valid, Replace returns an error and changes nothing.
func (s *Set) Replace(was, is []port.QueuePair) error {
	want, err := keysOf(is)
	if err != nil {
		return err
	}
	mine := validOf(was)
	if len(want) > port.MaxBound {
		return errSetFull
	}
	have, err := s.keys()
	if err != nil {
		return err
	}
	for i := range have {
		if want[have[i]] {
			delete(want, have[i])
		} else if mine[have[i]] {
			if err := s.put(&have[i], false); err != nil {
				return err
			}
		}
	}
	for k := range want {
		if err := s.put(&k, true); err != nil {
			return err
		}
	}
	return nil
}

// Add puts all queue pairs of o into s. It does nothing if both are the same map.
func (s *Set) Add(o *Set) error {
	mine, err := s.m.Info()
	if err != nil {
		return err
	}
	theirs, err := o.m.Info()
	if err != nil {
		return err
	}
	a, _ := mine.ID()
	b, _ := theirs.ID()
	if a == b && a != 0 {
		return nil
	}
	all, err := o.keys()
	if err != nil {
		return err
	}
	for i := range all {
		if err := s.put(&all[i], true); err != nil {
			return err
		}
	}
	return nil
}

// keys returns all keys of the set.
func (s *Set) keys() ([]setKey, error) {
	var at ebpf.MapBatchCursor
	keys, values := make([]setKey, port.MaxBound), make([]byte, port.MaxBound)
	for n := 0; ; {
		more, err := s.m.BatchLookup(&at, keys[n:], values[n:], nil)
		n += more
		switch {
		case errors.Is(err, ebpf.ErrKeyNotExist), err == nil && n == len(keys):
			return keys[:n], nil
		case err != nil:
			return nil, fmt.Errorf("read the set of bound queue pairs: %w", err)
		}
	}
}

// Empty reports whether no queue pair is in the set. It is false if the set cannot be read.
func (s *Set) Empty() bool {
	var k setKey
	return errors.Is(s.m.NextKey(nil, &k), ebpf.ErrKeyNotExist)
}

// Others returns the number of queue pairs in the set that are not among known.
func (s *Set) Others(known []port.QueuePair) (n int, err error) {
	all, err := s.keys()
	if err != nil || len(all) == 0 {
		return 0, err
	}
	mine := validOf(known)
	for i := range all {
		if !mine[all[i]] {
			n++
		}
	}
	return n, nil
}

// validOf is keysOf without those that are not valid, which no set has: a record that names one is damaged.
func validOf(all []port.QueuePair) map[setKey]bool {
	keys := map[setKey]bool{}
	for _, q := range all {
		if one, err := keysOf([]port.QueuePair{q}); err == nil {
			maps.Copy(keys, one)
		}
	}
	return keys
}

// Close closes the process's descriptor of the set. A program that uses the set keeps it alive.
func (s *Set) Close() error {
	if s == nil {
		return nil
	}
	return s.m.Close()
}

// keyAt is the offset from the frame pointer at which the program stores the setKey of a frame.
const keyAt = -56

// ipprotoBTH is the next header of RoCE v1's global route header.
const ipprotoBTH = 0x1B

// held emits code that drops the frame if it is to a queue pair of the set, or is an atomic that the
// guard stops. Every other frame crosses, also one that does not show its queue pair: a fragment, or
// a frame with IPv6 extension headers or more than two tags. Frames that a worker takes do not
// run through this code.
func (a *assembler) held() {
	a.ethernet("held-", "cross")
	a.add(
		asm.JEq.Imm(asm.R3, be16(0x0800), "held-ipv4"),
		asm.JEq.Imm(asm.R3, be16(0x86DD), "held-ipv6"),
		asm.JNE.Imm(asm.R3, be16(0x8915), "cross"),
	)
	a.heldIPv6(ipprotoBTH)
	a.add(asm.Ja.Label("held-bth"))

	a.label("held-ipv4")
	a.need(asm.R9, 20, "cross")
	a.add(
		asm.LoadMem(asm.R1, asm.R9, 0, asm.Byte),
		asm.Mov.Reg(asm.R2, asm.R1),
		asm.RSh.Imm(asm.R2, 4),
		asm.JNE.Imm(asm.R2, 4, "cross"),
		asm.LoadMem(asm.R2, asm.R9, 9, asm.Byte),
		asm.JNE.Imm(asm.R2, unix.IPPROTO_UDP, "cross"),
		asm.LoadMem(asm.R2, asm.R9, 6, asm.Half),
		asm.And.Imm(asm.R2, be16(0x3FFF)), // an offset, or more fragments
		asm.JNE.Imm(asm.R2, 0, "cross"),
		asm.StoreImm(asm.RFP, keyAt, 0, asm.Word),
		asm.StoreImm(asm.RFP, keyAt+4, 0, asm.Word),
		asm.StoreImm(asm.RFP, keyAt+8, 0, asm.Half),
		asm.StoreImm(asm.RFP, keyAt+10, -1, asm.Half),
		asm.LoadMem(asm.R2, asm.R9, 16, asm.Word),
		asm.StoreMem(asm.RFP, keyAt+12, asm.R2, asm.Word),
		asm.And.Imm(asm.R1, 15),
		asm.JLT.Imm(asm.R1, 5, "cross"),
		asm.LSh.Imm(asm.R1, 2),
		asm.Mov.Reg(asm.R3, asm.R9),
		asm.Add.Reg(asm.R3, asm.R1),
		asm.Ja.Label("held-udp"),
	)

	a.label("held-ipv6")
	a.heldIPv6(unix.IPPROTO_UDP)

	a.label("held-udp") // R3: the UDP header
	a.need(asm.R3, 8, "cross")
	a.add(
		asm.LoadMem(asm.R1, asm.R3, 2, asm.Half),
		asm.JNE.Imm(asm.R1, be16(4791), "cross"),
		asm.Add.Imm(asm.R3, 8),
	)

	a.label("held-bth") // R3, from here on R9: the base transport header
	a.need(asm.R3, 12, "cross")
	a.add(asm.Mov.Reg(asm.R9, asm.R3))
	if a.spec.Filter.Bound {
		unbound := "cross"
		if a.spec.Filter.Guarded {
			unbound = "held-unbound"
		}
		a.queuePair(unbound)
	}
	if a.spec.Filter.Guarded {
		a.label("held-unbound")
		a.guarded()
	}
	a.label("held-out")
	a.entry("held-drop")
	a.count(offShutOut)
	a.label("held-drop")
	a.add(asm.Mov.Imm(asm.R0, xdpDrop), asm.Ja.Label("exit"))
}

// queuePair emits code that jumps to "held-out", which drops the frame, if its queue pair is in the
// set, and else to unbound.
func (a *assembler) queuePair(unbound string) {
	a.add(
		asm.LoadMem(asm.R1, asm.R9, 4, asm.Word),
		asm.StoreMem(asm.RFP, keyAt+16, asm.R1, asm.Word),
		asm.StoreImm(asm.RFP, keyAt+16, 0, asm.Byte), // FECN, BECN and reserved bits
		asm.LoadMapPtr(asm.R1, a.bound),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, keyAt),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, unbound),
		asm.Ja.Label("held-out"),
	)
}

// heldIPv6 emits code that stores the destination address of the IPv6 or global route header at R9
// in the key, and leaves the header's end in R3. The frame crosses if the next header is not next.
func (a *assembler) heldIPv6(next int32) {
	a.need(asm.R9, 40, "cross")
	a.add(
		asm.LoadMem(asm.R1, asm.R9, 0, asm.Byte),
		asm.RSh.Imm(asm.R1, 4),
		asm.JNE.Imm(asm.R1, 6, "cross"),
		asm.LoadMem(asm.R1, asm.R9, 6, asm.Byte),
		asm.JNE.Imm(asm.R1, next, "cross"),
	)
	for i := int16(0); i < 16; i += 4 {
		a.add(asm.LoadMem(asm.R1, asm.R9, 24+i, asm.Word), asm.StoreMem(asm.RFP, keyAt+i, asm.R1, asm.Word))
	}
	a.add(asm.Mov.Reg(asm.R3, asm.R9), asm.Add.Imm(asm.R3, 40))
}
