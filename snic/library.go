package snic

import (
	"maps"
	"strings"

	"github.com/quillon/quillon/snic/dag"
)

// effects are what the functions that come with quillon do to packets. They hold
// for whatever arguments a function is given; a deployment may say better.
func effects(kind string) (reads, writes dag.Field, drops, answers, state, ok bool) {
	const (
		ip    = dag.IPAddresses | dag.IPOther
		flow  = dag.IPAddresses | dag.IPOther | dag.Ports
		bytes = dag.Bytes | dag.Length
	)
	switch kind {
	case "wire", "dummy":
		return 0, 0, false, false, false, true
	case "police":
		return flow | dag.VLAN | dag.Length, dag.IPOther, true, true, true, true
	case "firewall":
		return flow | dag.L4Other | dag.VLAN, 0, true, false, true, true
	case "napt":
		return flow | dag.L4Other | dag.Payload, dag.IPAddresses | dag.Ports | dag.Payload, true, true, true, true
	case "balance":
		return flow | dag.Ethernet, dag.Ethernet | dag.IPAddresses | dag.Ports, true, false, true, true
	case "aead", "vxlan", "nsh", "gobackn", "kvcache", "replicate":
		return bytes, bytes, true, kind != "aead" && kind != "vxlan" && kind != "nsh", true, true
	}
	return 0, 0, false, false, false, false
}

// names are those of fields, as a deployment has them.
func names(f dag.Field) []string { return strings.Split(f.String(), ",") }

// deployment reads and checks a deployment.
func deployment(text string) (*dag.Deployment, error) {
	s, err := dag.Parse([]byte(text))
	if err != nil {
		return nil, err
	}
	return Check(s, nil)
}

// fill says of tasks what a deployment does not: of those that come with quillon
// what is known, of others the most that a task can do to packets.
func fill(s *dag.Spec) {
	for name, t := range s.Tasks {
		if len(t.Reads) > 0 || len(t.Writes) > 0 || t.Drops || t.Answers || t.State {
			continue
		}
		r, w, drops, answers, state, ok := effects(t.Kind)
		if !ok {
			r, w, drops, answers, state = dag.AllFields, dag.AllFields, true, true, true
		}
		t.Reads, t.Writes = names(r), names(w)
		t.Drops, t.Answers, t.State = drops, answers, state
		s.Tasks[name] = t
	}
}

// Check reads what a deployment says, as the board does. kind says what is wrong
// with a network function and its arguments; nil: nothing is.
func Check(s *dag.Spec, kind func(kind string, args map[string]string) error) (*dag.Deployment, error) {
	c := *s
	c.Tasks = maps.Clone(s.Tasks)
	fill(&c)
	return c.Check(dag.Known{Kind: kind})
}
