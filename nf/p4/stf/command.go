package stf

import (
	"fmt"
	"math"
	"math/big"
	"slices"

	"github.com/quillon/quillon/nf/p4"
)

// words returns the numbers of a command, each of at most 31 bits.
func words(all []*big.Int) ([]uint32, error) {
	out := make([]uint32, len(all))
	for i, n := range all {
		if n.BitLen() > 31 {
			return nil, fmt.Errorf("%v is too large", n)
		}
		out[i] = uint32(n.Uint64())
	}
	return out, nil
}

// command carries out one of bmv2's commands.
func (r *run) command(s *Statement) error {
	switch s.Command {
	case "counter_read", "counter_write":
		return r.counter(s)
	case "register_read", "register_write", "register_reset":
		return r.register(s)
	case "meter_get_rates", "meter_set_rates", "meter_array_set_rates":
		return r.meter(s)
	}
	n, err := words(s.Numbers)
	if err != nil {
		return err
	}
	switch s.Command {
	case "mirroring_add":
		return r.sw.SetSession(n[0], p4.Session{Replicas: []p4.Replica{{Port: n[1]}}})
	case "mirroring_add_mc":
		return r.sw.SetSession(n[0], p4.Session{Group: n[1]})
	case "mirroring_delete":
		return r.sw.DeleteSession(n[0])
	case "mirroring_get":
		if _, ok := r.sw.Session(n[0]); !ok {
			return fmt.Errorf("there is no session %d", n[0])
		}
		return nil
	case "mc_mgrp_create":
		if _, ok := r.groups[n[0]]; ok {
			return fmt.Errorf("group %d exists already", n[0])
		}
		if r.groups == nil {
			r.groups = map[uint32][]int{}
		}
		r.groups[n[0]] = nil
		return nil
	case "mc_node_create":
		if n[0] > math.MaxUint16 {
			return fmt.Errorf("rid %d has more than 16 bits", n[0])
		}
		r.nodes = append(r.nodes, node{uint16(n[0]), n[1:]})
		return nil
	case "mc_node_update", "mc_node_associate":
		at, group := n[0], uint32(0)
		if s.Command == "mc_node_associate" {
			group, at = n[0], n[1]
		}
		if int64(at) >= int64(len(r.nodes)) {
			return fmt.Errorf("there is no node %d: nodes are counted from 0", at)
		}
		if s.Command == "mc_node_update" {
			r.nodes[at].ports = n[1:]
		} else {
			g, ok := r.groups[group]
			if !ok {
				return fmt.Errorf("there is no group %d", group)
			}
			r.groups[group] = append(g, int(at))
		}
		return r.setGroups()
	}
	return fmt.Errorf("%s: no such command", s.Command)
}

// setGroups gives the switch its multicast groups: the nodes in their order, and the ports of each node in
// ascending order.
func (r *run) setGroups() error {
	for id, members := range r.groups {
		var all []p4.Replica
		for _, m := range members {
			ports := slices.Clone(r.nodes[m].ports)
			slices.Sort(ports)
			for _, p := range slices.Compact(ports) {
				all = append(all, p4.Replica{Port: p, Rid: r.nodes[m].rid})
			}
		}
		if err := r.sw.SetMulticast(id, all); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) counter(s *Statement) error {
	a, err := array("counter", s.Name, r.prog.Counters())
	if err != nil {
		return err
	}
	at, err := words(s.Numbers[:1])
	if err != nil {
		return err
	}
	if s.Command == "counter_read" {
		_, err = r.sw.Count(a.Name, int(at[0]))
		return err
	}
	for _, n := range s.Numbers {
		if !n.IsUint64() {
			return fmt.Errorf("%v is too large", n)
		}
	}
	return r.sw.SetCount(a.Name, int(at[0]), p4.Count{Bytes: s.Numbers[1].Uint64(), Packets: s.Numbers[2].Uint64()})
}

func (r *run) register(s *Statement) error {
	a, err := array("register", s.Name, r.prog.Registers())
	if err != nil {
		return err
	}
	if s.Command == "register_reset" {
		for i := range a.Size {
			if err := r.sw.SetRegister(a.Name, i, nil); err != nil {
				return err
			}
		}
		return nil
	}
	at, err := words(s.Numbers[:1])
	if err != nil {
		return err
	}
	if s.Command == "register_write" {
		return r.sw.SetRegister(a.Name, int(at[0]), s.Numbers[1].Bytes())
	}
	_, err = r.sw.Register(a.Name, int(at[0]))
	return err
}

func (r *run) meter(s *Statement) error {
	a, err := array("meter", s.Name, r.prog.Meters())
	if err != nil {
		return err
	}
	at, err := words(s.Numbers)
	if err != nil {
		return err
	}
	if s.Command == "meter_get_rates" {
		_, err = r.sw.Meter(a.Name, int(at[0]))
		return err
	}
	rates := make([]p4.Rate, len(s.Rates))
	for i, x := range s.Rates {
		if x.PerMicrosecond > math.MaxUint32 {
			return fmt.Errorf("%g a microsecond is too much", x.PerMicrosecond)
		}
		rates[i] = p4.Rate{PerSecond: uint64(math.Round(x.PerMicrosecond * 1e6)), Burst: x.Burst}
	}
	if s.Command == "meter_set_rates" {
		return r.sw.SetMeter(a.Name, int(at[0]), rates...)
	}
	for i := range a.Size {
		if err := r.sw.SetMeter(a.Name, i, rates...); err != nil {
			return err
		}
	}
	return nil
}
