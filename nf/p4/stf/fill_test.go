package stf

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/quillon/quillon/nf/p4"
)

// filler gives a program random entries, arrays, groups and sessions, without any that a file has.
type filler struct {
	*rand.Rand
	s      *setup
	sw     *p4.Switch
	frames []input
	// ports are those that groups and sessions send to, and that parameters of 32 bits are likely to be.
	ports []uint32
}

// value is a number of a width: a small one, a piece of a frame, which a field of a packet is likely to have, or any.
func (f *filler) value(bits int) *big.Int {
	v := big.NewInt(f.Int64N(4))
	switch f.IntN(6) {
	case 0, 1:
		b := f.frames[f.IntN(len(f.frames))].frame
		if n := (bits + 7) / 8; n < len(b) {
			at := f.IntN(min(len(b)-n+1, 64))
			v.SetBytes(b[at : at+n])
		}
	case 2:
		for range (bits + 31) / 32 {
			v.Or(v.Lsh(v, 32), big.NewInt(int64(f.Uint32())))
		}
	case 3:
		v.SetUint64(uint64(f.ports[f.IntN(len(f.ports))]))
	}
	return v.And(v, ones(bits))
}

func ones(bits int) *big.Int {
	one := big.NewInt(1)
	return new(big.Int).Sub(new(big.Int).Lsh(one, uint(bits)), one)
}

func (f *filler) action(all []p4.ActionInfo) p4.Action {
	a := all[f.IntN(len(all))]
	x := p4.Action{Name: a.Name}
	for _, p := range a.Params {
		x.Args = append(x.Args, f.value(p.Bits).Bytes())
	}
	return x
}

func (f *filler) key(t p4.TableInfo) (all []p4.Match) {
	for _, k := range t.Keys {
		v := f.value(k.Bits)
		m := p4.Match{Value: v.Bytes()}
		switch k.Match {
		case p4.LPM:
			if k.Bits%8 == 0 { // bmv2 counts the zeros with which it fills up the first byte
				m.Prefix = f.IntN(k.Bits + 1)
			}
		case p4.Ternary:
			mask := f.value(k.Bits)
			if f.IntN(2) == 0 {
				mask = ones(k.Bits)
			}
			m.Mask = append([]byte{}, mask.Bytes()...)
		case p4.Range:
			high := new(big.Int).Add(v, f.value(k.Bits))
			if high.Cmp(ones(k.Bits)) > 0 {
				high = ones(k.Bits)
			}
			m.Mask = append([]byte{}, high.Bytes()...)
		}
		all = append(all, m)
	}
	return all
}

// fill sets up a random configuration behind the one that the program's file has.
func (s *setup) fill(r *run, rnd *rand.Rand, frames []input, ports []uint32) {
	f := &filler{Rand: rnd, s: s, sw: r.sw, frames: frames, ports: ports}
	for _, t := range s.prog.Tables() {
		switch {
		case len(t.Keys) == 0 || t.Const || len(t.Actions) == 0:
		case t.Profile != "":
		default:
			f.table(t)
		}
		if e := (p4.Entry{}); len(t.Keys) > 0 && !t.ConstDefault && t.Profile == "" && len(t.Actions) > 0 && f.IntN(3) > 0 {
			e.Action = f.action(t.Actions)
			if f.sw.SetDefault(t.Name, e) == nil {
				f.both("table_set_default "+t.Name+" "+e.Action.Name+p4.BMv2Args(e.Action), func(sw *p4.Switch) error { return sw.SetDefault(t.Name, e) })
			}
		}
	}
	for _, p := range s.prog.Profiles() {
		f.profile(p)
	}
	f.replication(len(r.nodes))
	f.arrays()
}

// both tells both switches the same, the engine by tell.
func (f *filler) both(line string, tell func(sw *p4.Switch) error) {
	f.s.lines = append(f.s.lines, line)
	before := f.s.also
	f.s.also = func(sw *p4.Switch) error {
		if before != nil {
			if err := before(sw); err != nil {
				return err
			}
		}
		if err := tell(sw); err != nil {
			return fmt.Errorf("%s: %w", line, err)
		}
		return nil
	}
}

func (f *filler) table(t p4.TableInfo) {
	for range f.IntN(14) {
		e := p4.Entry{Action: f.action(t.Actions), Key: f.key(t)}
		if t.Priority {
			e.Priority = math.MaxInt32 - int32(len(f.s.more)) - int32(f.IntN(2)*1000)
		}
		if _, err := f.sw.Insert(t.Name, e); err == nil {
			f.s.more = append(f.s.more, addition{t, e})
		}
	}
}

// profile makes members, groups, and entries of the tables of an action profile.
func (f *filler) profile(p p4.ProfileInfo) {
	if len(p.Actions) == 0 {
		return
	}
	members, groups := 1+f.IntN(6), 0
	if p.Size > 0 {
		members = min(members, p.Size)
	}
	for i := range members {
		a := f.action(p.Actions)
		f.both("act_prof_create_member "+p.Name+" "+a.Name+p4.BMv2Args(a), func(sw *p4.Switch) error { return sw.SetMember(p.Name, uint32(i+1), a) })
	}
	if p.Selector {
		groups = 1 + f.IntN(3)
	}
	for g := range groups {
		var of []p4.GroupMember
		lines := []string{"act_prof_create_group " + p.Name}
		for i := range members {
			if f.IntN(2) == 0 || i == members-1 && len(of) == 0 { // bmv2 aborts when a group without members is hit
				of = append(of, p4.GroupMember{ID: uint32(i + 1)})
				lines = append(lines, fmt.Sprintf("act_prof_add_member_to_group %s %d %d", p.Name, i, g))
			}
		}
		f.s.lines = append(f.s.lines, lines[:len(lines)-1]...)
		f.both(lines[len(lines)-1], func(sw *p4.Switch) error { return sw.SetGroup(p.Name, uint32(g+1), of) })
	}
	for _, t := range f.s.prog.Tables() {
		if t.Profile != p.Name || len(t.Keys) == 0 || t.Const {
			continue
		}
		var have [][]p4.Match
		for range f.IntN(10) {
			e := p4.Entry{Key: f.key(t), Member: uint32(1 + f.IntN(members))}
			line, to := "table_indirect_add", e.Member-1
			if t.Selector && f.IntN(3) > 0 {
				e.Member, e.Group = 0, uint32(1+f.IntN(groups))
				line, to = "table_indirect_add_with_group", e.Group-1
			}
			if t.Priority {
				e.Priority = math.MaxInt32 - int32(len(f.s.lines))
			}
			if slices.ContainsFunc(have, func(k []p4.Match) bool { return sameKey(t, k, e.Key) }) {
				continue
			}
			have = append(have, e.Key)
			add, _, _ := strings.Cut(p4.BMv2Add(t, p4.Entry{Key: e.Key}), " =>")
			line = fmt.Sprintf("%s %s%s => %d", line, t.Name, strings.TrimPrefix(add, "table_add "+t.Name+" "), to)
			if t.Priority {
				line += fmt.Sprint(" ", e.Priority)
			}
			f.both(line, func(sw *p4.Switch) error { _, err := sw.Insert(t.Name, e); return err })
		}
	}
}

// sameKey: a table takes one of two such keys.
func sameKey(t p4.TableInfo, a, b []p4.Match) bool {
	for i, k := range t.Keys {
		x, y := new(big.Int).SetBytes(a[i].Value), new(big.Int).SetBytes(b[i].Value)
		mask := ones(k.Bits)
		switch k.Match {
		case p4.LPM:
			mask.Lsh(mask.Rsh(mask, uint(k.Bits-a[i].Prefix)), uint(k.Bits-a[i].Prefix))
			if a[i].Prefix != b[i].Prefix {
				return false
			}
		case p4.Ternary, p4.Range:
			if !slices.Equal(a[i].Mask, b[i].Mask) {
				return false
			}
			if k.Match == p4.Ternary {
				mask.SetBytes(a[i].Mask)
			}
		}
		if x.And(x, mask).Cmp(y.And(y, mask)) != 0 {
			return false
		}
	}
	return true
}

// replication makes multicast groups 1 to 3 and clone sessions 1 to 4, of which one has a group. nodes is how many there are.
func (f *filler) replication(nodes int) {
	say := func(command string, n ...int) {
		s := Statement{Op: Command, Command: command}
		for _, x := range n {
			s.Numbers = append(s.Numbers, big.NewInt(int64(x)))
		}
		f.s.config = append(f.s.config, s)
	}
	for g := 1; g <= 3; g++ {
		if slices.ContainsFunc(f.s.config, func(s Statement) bool { return s.Command == "mc_mgrp_create" && s.Numbers[0].Int64() == int64(g) }) {
			continue
		}
		say("mc_mgrp_create", g)
		for range f.IntN(3) {
			to := []int{f.IntN(5)}
			for _, p := range f.ports {
				if p < 200 && f.IntN(2) == 0 {
					to = append(to, int(p))
				}
			}
			if len(to) == 1 {
				continue
			}
			say("mc_node_create", to...)
			say("mc_node_associate", g, nodes)
			nodes++
		}
	}
	for id := 1; id <= 3; id++ {
		say("mirroring_add", id, int(f.ports[f.IntN(len(f.ports))]&math.MaxInt32))
	}
	say("mirroring_add_mc", 4, 1+f.IntN(3))
}

// arrays sets registers, counters, and meters that get no tokens: with others the color depends on the time.
func (f *filler) arrays() {
	for _, a := range f.s.prog.Registers() {
		for i := range min(a.Size, 8) {
			v := f.value(min(a.Bits, 62))
			f.both(fmt.Sprintf("register_write %s %d %v", a.Name, i, v), func(sw *p4.Switch) error { return sw.SetRegister(a.Name, i, v.Bytes()) })
		}
	}
	for _, a := range f.s.prog.Counters() {
		i, n := f.IntN(a.Size), p4.Count{Packets: uint64(f.IntN(9)), Bytes: uint64(f.IntN(999))}
		f.both(fmt.Sprintf("counter_write %s %d %d %d", a.Name, i, n.Packets, n.Bytes), func(sw *p4.Switch) error { return sw.SetCount(a.Name, i, n) })
	}
	for _, a := range f.s.prog.Meters() {
		for i := range min(a.Size, 8) {
			unit := uint64(1)
			if a.Byte {
				unit = 60
			}
			committed := unit * uint64(f.IntN(8))
			rates := []p4.Rate{{Burst: committed}, {Burst: committed + unit*uint64(f.IntN(8))}}
			f.both(fmt.Sprintf("meter_set_rates %s %d 0:%d 0:%d", a.Name, i, rates[0].Burst, rates[1].Burst),
				func(sw *p4.Switch) error { return sw.SetMeter(a.Name, i, rates...) })
		}
	}
}

// templates are frames for programs without any in a file: Ethernet, IPv4 and a transport header, and random bytes.
func templates(r *rand.Rand) (all []input) {
	for i := range 12 {
		b := make([]byte, 14+20+20+r.IntN(60))
		for j := range b {
			b[j] = byte(r.IntN(cmp.Or(256*(i%2), 4)))
		}
		if i%4 != 3 {
			copy(b[12:], []byte{8, 0, 0x45, 0, 0, byte(len(b) - 14), 0, 0, 0, 0, 64, []byte{6, 17}[r.IntN(2)]})
		}
		repair(b)
		all = append(all, input{uint32(1 + r.IntN(4)), b})
	}
	return all
}
