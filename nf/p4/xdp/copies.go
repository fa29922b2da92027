package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/quillon/quillon/nf/p4/internal/ir"
)

// Multicast. The program runs egress once for each replica of a group, each time with the state in which the frame came out of ingress. If all copies that are not
// dropped are alike, and leave by all ports of the group, or by all but the one that the frame came in by, the kernel sends one frame to a set of interfaces. A single
// copy goes to its port. All other frames go to the engine.
//
// A group's word is 1 + the number of a list of its replicas, or 0 if there are none. A list is a word, whose lower half is the number of replicas and whose upper half
// is the number of a set of interfaces, and a word for each replica: its port, from bit 16 on its egress_rid, and from bit 32 on whether its port is none of the kernel's.
// Lists, and numbers of sets, are written again after a grace period.
const (
	maxReplicas = 32
	maxLists    = 8192
	maxSets     = 256
	maxGroup    = 1 << 16
	listWords   = 1 + maxReplicas
	enginesOwn  = ^uint32(0) // in a group's word
)

// Flags of bpf_redirect_map.
const (
	broadcast      = 1 << 3
	excludeIngress = 1 << 4
)

// In the state, behind a frame to several ports, atPort is toList and the list's number, and notIngress.
const (
	toList     = 1 << 20
	notIngress = 1 << 19
)

const (
	whyPort   = "it goes to a port that the kernel does not send to"
	whyGroup  = "its multicast group is not in the kernel"
	whyDiffer = "the copies for its multicast group differ"
	whySome   = "its copies leave by some ports of the multicast group only"
)

// copies are the multicast groups of an Executor.
type copies struct {
	x             *Executor
	most          int // replicas
	groups, lists *shared
	sets          *ebpf.Map
	numbers       *rest
	of            map[string]*portSet // by their ports
	bySet         []*portSet
}

// portSet is a set of interfaces.
type portSet struct {
	ports string
	uses  int // lists that have it
}

func (c *copies) addCopies() (err error) {
	x := c.x
	c.of, c.numbers = map[string]*portSet{}, x.graces.rest(maxLists)
	if c.groups, err = x.newShared("p4_multicast", 4*maxGroup); err != nil {
		return err
	}
	if c.lists, err = x.newShared("p4_replicas", 8*listWords*maxLists); err != nil {
		return err
	}
	c.sets, err = x.newMap(ebpf.MapSpec{Name: "p4_sets", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: maxSets, InnerMap: setSpec(1)})
	return err
}

func setSpec(ports int) *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: "p4_set", Type: ebpf.DevMap, KeySize: 4, ValueSize: 4, MaxEntries: uint32(max(1, ports))}
}

// Multicast implements ir.Follower.
func (c *copies) Multicast(group uint32, to []ir.Replica) {
	if c.groups == nil || group >= maxGroup {
		return
	}
	name := fmt.Sprintf("multicast group %d", group)
	delete(c.x.why, name)
	word := uint32(0)
	if len(to) > 0 {
		n, err := c.list(to)
		if word = n + 1; err != nil {
			word, c.x.why[name] = enginesOwn, err.Error()
		}
	}
	was := *c.groups.half(int(group))
	storeHalf(c.groups, int(group), word)
	if was != 0 && was != enginesOwn {
		c.bySet[*c.lists.word(listWords * int(was-1))>>32].uses--
		c.numbers.leave(was - 1)
	}
}

// list makes a list, and returns its number.
func (c *copies) list(to []ir.Replica) (uint32, error) {
	if len(to) > c.most {
		return 0, fmt.Errorf("it has more replicas than %d", c.most)
	}
	words, ports := []uint64{0}, []uint32{}
	for _, r := range to {
		target, there := c.x.to[r.Port]
		there = there && r.Port < devices
		if there && slices.ContainsFunc(c.x.from, func(f Source) bool { return f.Port == r.Port && f.Index != target.Index }) {
			return 0, fmt.Errorf("frames of port %d come in by several interfaces", r.Port)
		}
		w := uint64(r.Port&0xffff) | uint64(r.Rid)<<16
		if there {
			ports = append(ports, r.Port)
		} else {
			w |= 1 << 32
		}
		if r.Port > 0xffff {
			return 0, fmt.Errorf("port %d is above 65535", r.Port)
		}
		words = append(words, w)
	}
	set, err := c.set(ports)
	if err != nil {
		return 0, err
	}
	n, err := c.numbers.take()
	if err != nil {
		return 0, err
	}
	words[0] = uint64(set)<<32 | uint64(len(to))
	for i, w := range words {
		c.lists.store(listWords*int(n)+i, w)
	}
	c.bySet[set].uses++
	return n, nil
}

// set returns the number of a set of interfaces. To make a new one takes a grace period: the kernel waits for one when a map of maps is written.
func (c *copies) set(ports []uint32) (int, error) {
	key := ""
	for _, p := range ports {
		key = string(binary.NativeEndian.AppendUint32([]byte(key), p))
	}
	if s := c.of[key]; s != nil {
		return slices.Index(c.bySet, s), nil
	}
	m, err := ebpf.NewMap(setSpec(len(ports)))
	if err != nil {
		return 0, fmt.Errorf("make a set of %d interfaces: %w", len(ports), err)
	}
	defer m.Close()
	for i, p := range ports {
		if err := m.Put(uint32(i), uint32(c.x.to[p].Index)); err != nil {
			return 0, fmt.Errorf("port %d to interface %d: %w", p, c.x.to[p].Index, err)
		}
	}
	n := len(c.bySet)
	if n == maxSets {
		if n = slices.IndexFunc(c.bySet, func(s *portSet) bool { return s.uses == 0 }); n < 0 {
			return 0, fmt.Errorf("the groups have more than %d different sets of ports", maxSets)
		}
		if err := c.x.graces.now(); err != nil { // a frame may be on its way to the old one
			return 0, err
		}
		delete(c.of, c.bySet[n].ports)
	} else {
		c.bySet = append(c.bySet, nil)
	}
	c.bySet[n] = &portSet{ports: key}
	if err := c.sets.Put(uint32(n), m); err != nil {
		return 0, errors.Join(errors.New("keep a set of interfaces"), err)
	}
	c.of[key] = c.bySet[n]
	return n, nil
}

// noCopies returns why the kernel makes no copies of a program's frames; empty: it does.
func (g *gen) noCopies() string {
	if g.opt.NoCopies {
		return "egress, for each copy, is too long for this kernel"
	}
	for _, n := range g.order(g.p.Egress) {
		node := &g.p.Nodes[n]
		actions := []int{node.Action}
		switch node.Kind {
		case ir.TestNode:
			continue
		case ir.TableNode:
			t := &g.p.Tables[node.Table]
			if t.Counters {
				return fmt.Sprintf("table %s counts in egress", t.Name)
			}
			actions = t.Actions
			if t.Initial >= 0 {
				actions = append(slices.Clip(actions), t.Initial)
			}
		}
		for _, a := range actions {
			for _, op := range g.p.Actions[a].Code {
				if usesRegisters(&op) || op.Name == "count" {
					return fmt.Sprintf("action %s uses counters or registers in egress", g.p.Actions[a].Name)
				}
			}
		}
	}
	for i := range g.p.Update {
		if c := &g.p.Update[i]; g.ofCopy(c) {
			return fmt.Sprintf("checksum %s depends on the copy", c.Name)
		}
	}
	return ""
}

// ofCopy reports whether a checksum reads fields that are another in each copy.
func (g *gen) ofCopy(c *ir.Checksum) bool {
	own := func(f *ir.Field) bool { return f != nil && (f == g.p.Std.EgressPort || f == g.p.Std.Rid) }
	var reads func(e *ir.Expr) bool
	reads = func(e *ir.Expr) bool {
		return e != nil && (own(e.Field) || slices.ContainsFunc(e.Kids[:], reads))
	}
	return reads(c.When) || slices.ContainsFunc(c.Inputs, func(in ir.Input) bool {
		return own(in.Field) || in.Header != nil && slices.ContainsFunc(in.Header.Fields, own)
	})
}

// multicast translates what a frame to the group in R1 does.
func (g *gen) multicast() {
	const run = "copy"
	g.label(run)
	from := len(g.code)
	g.pipeline("copies", g.p.Egress)
	held := wordsStored(g.code[from:])
	g.next.copied = len(held)
	before, first := g.lay.copied, g.lay.copied+8*len(held)
	// keep copies the words to a place, and bring brings them back.
	keep := func(place int) { g.copyWords(held, place, false) }
	bring := func(place int) { g.copyWords(held, place, true) }
	next, done := g.fresh(), g.fresh()
	g.copied(next, held, first)

	g.label("multicast")
	there := g.fresh()
	g.add(asm.JGE.Imm(asm.R1, maxGroup, "dropped-replica"), asm.LSh.Imm(asm.R1, 2), asm.LoadMapValue(asm.R2, g.maps.multicast, 0), asm.Add.Reg(asm.R2, asm.R1),
		asm.LoadMem(asm.R1, asm.R2, 0, asm.Word), asm.JEq.Imm(asm.R1, 0, "dropped-replica"), asm.Sub.Imm(asm.R1, 1), asm.JLT.Imm(asm.R1, maxLists, there))
	g.label("no-list")
	g.pass(whyGroup)
	g.label(there)
	g.add(asm.StoreMem(rState, atList, asm.R1, asm.DWord))
	g.waits()
	if len(g.u.timed) > 0 {
		g.time() // once for all copies
	}
	keep(before)
	g.add(storeImm(rState, atCopies, 0, asm.DWord), storeImm(rState, atApart, 0, asm.DWord), storeImm(asm.RFP, loopAt, 0, asm.DWord))

	g.label(next)
	g.list()
	g.add(asm.LoadMem(asm.R1, asm.R3, 0, asm.Word), asm.LoadMem(asm.R5, asm.RFP, loopAt, asm.DWord), asm.JGE.Imm(asm.R5, maxReplicas, done), asm.JGE.Reg(asm.R5, asm.R1, done),
		asm.Mov.Reg(asm.R1, asm.R5), asm.LSh.Imm(asm.R1, 3), asm.Add.Reg(asm.R3, asm.R1), asm.LoadMem(asm.R2, asm.R3, 8, asm.DWord),
		asm.Add.Imm(asm.R5, 1), asm.StoreMem(asm.RFP, loopAt, asm.R5, asm.DWord), asm.StoreMem(rState, atReplica, asm.R2, asm.DWord),
		asm.And.Imm(asm.R2, 0xffff), asm.StoreMem(rState, atPort, asm.R2, asm.DWord))
	bring(before)
	g.storeStdReg(g.p.Std.EgressPort, asm.R2)
	g.add(asm.LoadMem(asm.R1, rState, atReplica, asm.DWord), asm.RSh.Imm(asm.R1, 16), asm.And.Imm(asm.R1, 0xffff))
	g.storeStdReg(g.p.Std.Rid, asm.R1)
	g.leaveQueue(replicaType)
	g.jump(run)

	g.label(done)
	many, send := g.fresh(), g.fresh()
	g.add(asm.LoadMem(asm.R1, rState, atCopies, asm.DWord), asm.JEq.Imm(asm.R1, 0, "dropped-egress"))
	bring(first)
	g.add(asm.LoadMem(asm.R1, rState, atCopies, asm.DWord), asm.JGT.Imm(asm.R1, 1, many), asm.LoadMem(asm.R2, rState, atLast, asm.DWord),
		asm.StoreMem(rState, atPort, asm.R2, asm.DWord), asm.LoadMapPtr(asm.R1, g.maps.devices), asm.Mov.Imm(asm.R3, 0), asm.FnRedirectMap.Call(),
		asm.JEq.Imm(asm.R0, xdpRedirect, "leaves"))
	g.pass(whyPort)
	g.label(many)
	g.add(asm.LoadMem(asm.R1, rState, atApart, asm.DWord), asm.Mov.Imm(asm.R3, broadcast), asm.JLE.Imm(asm.R1, copyBack, send),
		asm.Mov.Imm(asm.R3, broadcast|excludeIngress), asm.JEq.Imm(asm.R1, lacksIngress, send))
	g.pass(whySome)
	g.label(send)
	g.add(asm.StoreMem(rState, atApart, asm.R3, asm.DWord))
	g.list()
	g.add(asm.LoadMem(asm.R1, asm.R3, 4, asm.Word))
	g.cellOf(g.maps.sets, "no-list")
	g.add(asm.Mov.Reg(asm.R1, asm.R0), asm.Mov.Imm(asm.R2, 0), asm.LoadMem(asm.R3, rState, atApart, asm.DWord), asm.FnRedirectMap.Call(),
		asm.JNE.Imm(asm.R0, xdpRedirect, "no-list"), asm.LoadMem(asm.R1, rState, atApart, asm.DWord), asm.And.Imm(asm.R1, excludeIngress), asm.Mul.Imm(asm.R1, notIngress/excludeIngress),
		asm.LoadMem(asm.R2, rState, atList, asm.DWord), asm.Or.Reg(asm.R1, asm.R2), asm.Or.Imm(asm.R1, toList), asm.StoreMem(rState, atPort, asm.R1, asm.DWord))
	g.jump("leaves")
}

// replicaType is the instance_type of copies for a multicast group.
const replicaType = 5

// Bits of atApart.
const (
	copyBack     = 1 << iota // a copy leaves by the port that the frame came in by
	lacksIngress             // none for that port leaves
	lacksOther               // none for another port
)

// copied translates what is done with a copy behind egress, and goes on with the next one.
func (g *gen) copied(next string, held []int, first int) {
	dropped, none, one, keep, counted, apart, differ := g.fresh(), g.fresh(), g.fresh(), g.fresh(), g.fresh(), g.fresh(), g.fresh()
	g.readField(g.p.Std.EgressSpec, 0, asm.R1)
	g.add(asm.JEq.Imm(asm.R1, int32(g.opt.DropPort), dropped), asm.LoadMem(asm.R2, rState, atPort, asm.DWord), asm.JGE.Imm(asm.R2, devices, none),
		asm.LSh.Imm(asm.R2, 2), asm.LoadMapValue(asm.R3, g.maps.out, 0), asm.Add.Reg(asm.R3, asm.R2), asm.LoadMem(asm.R1, asm.R3, 0, asm.Word),
		asm.JEq.Imm(asm.R1, 0, none), asm.LoadMem(asm.R2, rState, atCopies, asm.DWord), asm.JEq.Imm(asm.R2, 0, one),
		asm.LoadMem(asm.R2, rState, atLongest, asm.DWord), asm.JGE.Reg(asm.R1, asm.R2, keep), asm.StoreMem(rState, atLongest, asm.R1, asm.DWord))
	g.label(keep)
	for i, w := range held {
		g.add(asm.LoadMem(asm.R1, rState, int16(8*w), asm.DWord), asm.LoadMem(asm.R2, rState, int16(first+8*i), asm.DWord), asm.JNE.Reg(asm.R1, asm.R2, differ))
	}
	g.jump(counted)
	g.label(differ)
	g.pass(whyDiffer)
	g.label(none)
	g.pass(whyPort)
	g.label(one)
	g.add(asm.StoreMem(rState, atLongest, asm.R1, asm.DWord))
	g.copyWords(held, first, false)
	g.label(counted)
	g.add(asm.LoadMem(asm.R1, rState, atCopies, asm.DWord), asm.Add.Imm(asm.R1, 1), asm.StoreMem(rState, atCopies, asm.R1, asm.DWord),
		asm.LoadMem(asm.R1, rState, atPort, asm.DWord), asm.StoreMem(rState, atLast, asm.R1, asm.DWord), asm.LoadMem(asm.R2, rState, atIn, asm.DWord), asm.And.Imm(asm.R2, inNumber),
		asm.JNE.Reg(asm.R1, asm.R2, next), asm.Mov.Imm(asm.R3, copyBack))
	g.jump(apart)
	g.label(dropped)
	g.add(asm.LoadMem(asm.R1, rState, atReplica, asm.DWord), asm.RSh.Imm(asm.R1, 32), asm.JNE.Imm(asm.R1, 0, next),
		asm.LoadMem(asm.R1, rState, atPort, asm.DWord), asm.LoadMem(asm.R2, rState, atIn, asm.DWord), asm.And.Imm(asm.R2, inNumber),
		asm.Mov.Imm(asm.R3, lacksIngress), asm.JEq.Reg(asm.R1, asm.R2, apart), asm.Mov.Imm(asm.R3, lacksOther))
	g.label(apart)
	g.add(asm.LoadMem(asm.R1, rState, atApart, asm.DWord), asm.Or.Reg(asm.R1, asm.R3), asm.StoreMem(rState, atApart, asm.R1, asm.DWord))
	g.jump(next)
}

// copyWords copies words of the state to a place in the state, or back. It changes R1.
func (g *gen) copyWords(words []int, place int, back bool) {
	for i, w := range words {
		from, to := 8*w, place+8*i
		if back {
			from, to = to, from
		}
		g.add(asm.LoadMem(asm.R1, rState, int16(from), asm.DWord), asm.StoreMem(rState, int16(to), asm.R1, asm.DWord))
	}
}

// list leaves the address of the list of the frame's group in R3. It changes R1.
func (g *gen) list() {
	g.add(asm.LoadMem(asm.R1, rState, atList, asm.DWord), asm.JGE.Imm(asm.R1, maxLists, "no-list"), asm.Mul.Imm(asm.R1, 8*listWords),
		asm.LoadMapValue(asm.R3, g.maps.lists, 0), asm.Add.Reg(asm.R3, asm.R1))
}

// wordsStored returns the words of the state that code stores to, without those that say what was missed and the time, which no frame shows.
func wordsStored(code asm.Instructions) (all []int) {
	for i := range code {
		if _, store, at, n := ofState(&code[i]); store {
			for w := at / 8; w <= (at+n-1)/8; w++ {
				if w != atMissed/8 && w != atTime/8 && w != atTimed/8 {
					all = append(all, w)
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
