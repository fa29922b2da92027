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
	c.x.changes++
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
	s := &portSet{}
	c.bySet[n] = s // in no group's use
	if err := c.sets.Put(uint32(n), m); err != nil {
		return 0, errors.Join(errors.New("keep a set of interfaces"), err)
	}
	s.ports = key
	c.of[key] = s
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
	next, done, there := g.fresh(), g.fresh(), g.fresh()
	g.copied(next, held, first)

	g.label("multicast")
	g.whenImm(asm.JGE, asm.R1, maxGroup, "dropped-replica")
	g.calc(asm.LSh, asm.R1, 2)
	g.address(asm.R2, g.maps.multicast)
	g.with(asm.Add, asm.R2, asm.R1)
	g.get32(asm.R1, asm.R2, 0)
	g.whenImm(asm.JEq, asm.R1, 0, "dropped-replica")
	g.calc(asm.Sub, asm.R1, 1)
	g.whenImm(asm.JLT, asm.R1, maxLists, there)
	g.label("no-list")
	g.pass(whyGroup)
	g.label(there)
	g.put(atList, asm.R1)
	g.waits()
	if len(g.u.timed) > 0 {
		g.time() // once for all copies
	}
	keep(before)
	g.set(atCopies, 0)
	g.set(atApart, 0)
	g.add(storeImm(asm.RFP, loopAt, 0, asm.DWord))

	g.label(next)
	g.list()
	g.get32(asm.R1, asm.R3, 0)
	g.load(asm.R5, asm.RFP, loopAt, asm.DWord)
	g.whenImm(asm.JGE, asm.R5, maxReplicas, done)
	g.compareRegs(asm.JGE, asm.R5, asm.R1, done)
	g.with(asm.Mov, asm.R1, asm.R5)
	g.calc(asm.LSh, asm.R1, 3)
	g.with(asm.Add, asm.R3, asm.R1)
	g.load(asm.R2, asm.R3, 8, asm.DWord)
	g.calc(asm.Add, asm.R5, 1)
	g.keep(asm.RFP, loopAt, asm.R5, asm.DWord)
	g.put(atReplica, asm.R2)
	g.calc(asm.And, asm.R2, 0xffff)
	g.put(atPort, asm.R2)
	bring(before)
	g.storeStdReg(g.p.Std.EgressPort, asm.R2)
	g.get(asm.R1, atReplica)
	g.calc(asm.RSh, asm.R1, 16)
	g.calc(asm.And, asm.R1, 0xffff)
	g.storeStdReg(g.p.Std.Rid, asm.R1)
	g.leaveQueue(replicaType)
	g.jump(run)

	g.label(done)
	many, send := g.fresh(), g.fresh()
	g.get(asm.R1, atCopies)
	g.whenImm(asm.JEq, asm.R1, 0, "dropped-egress")
	bring(first)
	g.get(asm.R1, atCopies)
	g.whenImm(asm.JGT, asm.R1, 1, many)
	g.onlyCopy()
	g.label(many)
	g.get(asm.R1, atApart)
	g.calc(asm.Mov, asm.R3, broadcast)
	g.whenImm(asm.JLE, asm.R1, copyBack, send)
	g.calc(asm.Mov, asm.R3, broadcast|excludeIngress)
	g.whenImm(asm.JEq, asm.R1, lacksIngress, send)
	g.pass(whySome)
	g.label(send)
	g.put(atApart, asm.R3)
	g.list()
	g.get32(asm.R1, asm.R3, 4)
	g.cellOf(g.maps.sets, "no-list")
	g.with(asm.Mov, asm.R1, asm.R0)
	g.calc(asm.Mov, asm.R2, 0)
	g.get(asm.R3, atApart)
	g.add(asm.FnRedirectMap.Call())
	g.whenImm(asm.JNE, asm.R0, xdpRedirect, "no-list")
	g.get(asm.R1, atApart)
	g.calc(asm.And, asm.R1, excludeIngress)
	g.calc(asm.Mul, asm.R1, notIngress/excludeIngress)
	g.get(asm.R2, atList)
	g.with(asm.Or, asm.R1, asm.R2)
	g.calc(asm.Or, asm.R1, toList)
	g.put(atPort, asm.R1)
	g.jump("leaves")
}

// replicaType is the instance_type of copies for a multicast group.
const replicaType = 5

// onlyCopy translates what is done with a copy that is the only one.
func (g *gen) onlyCopy() {
	none := g.fresh()
	g.get(asm.R2, atLast)
	g.put(atPort, asm.R2)
	g.longest(none)
	g.whenImm(asm.JGE, asm.R1, noLink, none)
	g.add(asm.LoadMapPtr(asm.R1, g.maps.devices))
	g.calc(asm.Mov, asm.R3, 0)
	g.add(asm.FnRedirectMap.Call())
	g.whenImm(asm.JEq, asm.R0, xdpRedirect, "leaves")
	g.label(none)
	g.pass(whyPort)
}

// longest leaves in R1 the word of exits.out for the port in R2, or jumps to none. It changes R3.
func (g *gen) longest(none string) {
	g.whenImm(asm.JGE, asm.R2, devices, none)
	g.with(asm.Mov, asm.R1, asm.R2)
	g.calc(asm.LSh, asm.R1, 2)
	g.address(asm.R3, g.maps.out)
	g.with(asm.Add, asm.R3, asm.R1)
	g.get32(asm.R1, asm.R3, 0)
	g.whenImm(asm.JEq, asm.R1, 0, none)
}

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
	g.whenImm(asm.JEq, asm.R1, int(g.opt.DropPort), dropped)
	g.get(asm.R2, atPort)
	g.longest(none)
	g.calc(asm.And, asm.R1, noLink-1) // the set of interfaces is sent all the same
	g.get(asm.R2, atCopies)
	g.whenImm(asm.JEq, asm.R2, 0, one)
	g.get(asm.R2, atLongest)
	g.compareRegs(asm.JGE, asm.R1, asm.R2, keep)
	g.put(atLongest, asm.R1)
	g.label(keep)
	for i, w := range held {
		g.get(asm.R1, 8*w)
		g.get(asm.R2, first+8*i)
		g.compareRegs(asm.JNE, asm.R1, asm.R2, differ)
	}
	g.jump(counted)
	g.label(differ)
	g.pass(whyDiffer)
	g.label(none)
	g.pass(whyPort)
	g.label(one)
	g.put(atLongest, asm.R1)
	g.copyWords(held, first, false)
	g.label(counted)
	g.get(asm.R1, atCopies)
	g.calc(asm.Add, asm.R1, 1)
	g.put(atCopies, asm.R1)
	g.get(asm.R1, atPort)
	g.put(atLast, asm.R1)
	g.get(asm.R2, atIn)
	g.calc(asm.And, asm.R2, inNumber)
	g.compareRegs(asm.JNE, asm.R1, asm.R2, next)
	g.calc(asm.Mov, asm.R3, copyBack)
	g.jump(apart)
	g.label(dropped)
	g.get(asm.R1, atReplica)
	g.calc(asm.RSh, asm.R1, 32)
	g.whenImm(asm.JNE, asm.R1, 0, next)
	g.get(asm.R1, atPort)
	g.get(asm.R2, atIn)
	g.calc(asm.And, asm.R2, inNumber)
	g.calc(asm.Mov, asm.R3, lacksIngress)
	g.compareRegs(asm.JEq, asm.R1, asm.R2, apart)
	g.calc(asm.Mov, asm.R3, lacksOther)
	g.label(apart)
	g.get(asm.R1, atApart)
	g.with(asm.Or, asm.R1, asm.R3)
	g.put(atApart, asm.R1)
	g.jump(next)
}

// copyWords copies words of the state to a place in the state, or back. It changes R1.
func (g *gen) copyWords(words []int, place int, back bool) {
	for i, w := range words {
		from, to := 8*w, place+8*i
		if back {
			from, to = to, from
		}
		g.get(asm.R1, from)
		g.put(to, asm.R1)
	}
}

// list leaves the address of the list of the frame's group in R3. It changes R1.
func (g *gen) list() {
	g.get(asm.R1, atList)
	g.whenImm(asm.JGE, asm.R1, maxLists, "no-list")
	g.calc(asm.Mul, asm.R1, 8*listWords)
	g.address(asm.R3, g.maps.lists)
	g.with(asm.Add, asm.R3, asm.R1)
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
