package xsk

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"

	"github.com/cilium/ebpf"
)

// The roles of a program's maps. While Resume compares programs, a map has the number
// part*mapRoles + role; maps that all parts share count as maps of part 0.
const (
	_ = iota
	roleState
	roleSockets
	roleDevice
	roleHosts
	roleBound
	roleGuard
	roleFront
	mapRoles
)

// Resume checks whether the attached program is the one that Load would make of parts, with maps of the
// same contents, so that it need not be replaced. If so, Resume opens the State, the Sockets, the Front
// and the Device of each part and returns the parts with these. If not, it returns nil. Of the State and
// the Sockets in parts, only the number of queues counts. A part that wants nothing has no socket map.
func (a *Attached) Resume(parts ...Part) (mine []Part, err error) {
	info, err := a.Prog.Info()
	if err != nil {
		return nil, err
	}
	// A program's tag is a hash of its instructions without the maps that they name.
	as := make([]assembler, len(parts))
	for n, p := range parts {
		as[n] = assembler{
			spec: p.Spec, state: n*mapRoles + roleState, sockets: n*mapRoles + roleSockets, device: n*mapRoles + roleDevice,
			bound: roleBound, guard: roleGuard,
		}
		if p.Front != nil {
			as[n].front = n*mapRoles + roleFront
		}
		if len(p.Spec.Filter.Hosts) > 0 {
			as[n].hosts = n*mapRoles + roleHosts
		}
	}
	code := join(parts, as)
	order := binary.ByteOrder(binary.LittleEndian)
	if binary.NativeEndian.Uint16([]byte{0, 1}) == 1 {
		order = binary.BigEndian
	}
	if err := code.Marshal(io.Discard, order); err != nil { // so that jumps have their lengths
		return nil, err
	}
	if same, err := code.HasTag(info.Tag, order); !same || err != nil {
		return nil, err
	}
	var used []int // maps, in the order of their first use, as the kernel lists them
	for _, ins := range code {
		if k := int(ins.Constant); ins.IsLoadFromMap() && !slices.Contains(used, k) {
			used = append(used, k)
		}
	}
	ids, _ := info.MapIDs()
	if len(ids) != len(used) {
		return nil, nil
	}
	mine = slices.Clone(parts)
	for n := range mine {
		mine[n].State, mine[n].Sockets, mine[n].Front, mine[n].Device = nil, nil, nil, nil
	}
	same := true
	for i, id := range ids {
		var m *ebpf.Map
		if m, err = ebpf.NewMapFromID(id); err != nil {
			break
		}
		n := used[i] / mapRoles
		kept, is, e := mine[n].take(used[i]%mapRoles, m, id, &parts[n])
		if !kept {
			e = errors.Join(e, m.Close())
		}
		if err, same = e, is; err != nil || !same {
			break
		}
	}
	if err == nil && same {
		return mine, nil
	}
	for _, p := range mine {
		err = errors.Join(err, p.State.Close())
		for _, m := range []*ebpf.Map{p.Sockets, p.Front, p.Device} {
			if m != nil {
				err = errors.Join(err, m.Close())
			}
		}
	}
	return nil, err
}

// take reports in is whether map m has the type and contents that the part want needs in this role.
// kept means that p owns m afterwards, which is so for State, Sockets, Device and Front; else the
// caller closes m.
func (p *Part) take(role int, m *ebpf.Map, id ebpf.MapID, want *Part) (kept, is bool, err error) {
	switch role {
	case roleState:
		s, err := openState(m)
		if err != nil {
			return false, false, err
		}
		p.State = s
		return true, *s.word(0, offMagic) == stateMagic && s.ifindex() == p.Index && s.queues == want.State.queues, nil
	case roleSockets:
		p.Sockets = m
		return true, m.Type() == ebpf.XSKMap && m.MaxEntries() == want.Sockets.MaxEntries(), nil
	case roleDevice:
		var to uint32
		p.Device = m
		err := m.Lookup(uint32(0), &to)
		return true, to == uint32(p.Spec.Other), err
	case roleHosts:
		is, err := hasHosts(m, p.Spec)
		return false, is, err
	case roleBound:
		return false, p.Bound != nil && isMap(p.Bound.m, id), nil
	case roleFront:
		p.Front = m
		return true, m.Type() == ebpf.ProgramArray, nil
	case roleGuard:
		return false, p.Guard != nil && isMap(p.Guard.m, id), nil
	}
	return false, false, nil
}

// hasHosts reports whether the host map has exactly the hosts of spec's filter.
func hasHosts(m *ebpf.Map, spec ProgramSpec) (bool, error) {
	want := map[[16]byte]bool{}
	for _, h := range spec.Filter.Hosts {
		want[hostKey(h)] = true
	}
	var k [16]byte
	var v uint8
	n, all := 0, m.Iterate()
	for ; all.Next(&k, &v); n++ {
		if !want[k] {
			return false, nil
		}
	}
	return n == len(want), all.Err()
}

// isMap reports whether m is the map with this ID in the kernel.
func isMap(m *ebpf.Map, id ebpf.MapID) bool {
	info, err := m.Info()
	if err != nil {
		return false
	}
	is, ok := info.ID()
	return ok && is == id
}
