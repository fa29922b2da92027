package snic

import (
	"maps"
	"strings"
	"sync"

	"github.com/quillon/quillon/snic/dag"
)

// Effects are what the functions that come with quillon do to packets. They hold
// for whatever arguments a function is given; a deployment may say better.
func Effects(kind string) (e dag.Effects, ok bool) {
	// Whoever looks at IP headers looks for them: behind the EtherType and the tags,
	// and takes those of a tunnel for a datagram's own.
	const (
		headers = dag.Ethernet | dag.VLAN | dag.Encap | dag.IPOther
		flow    = headers | dag.IPAddresses | dag.Ports
	)
	switch kind {
	case "wire", "dummy":
		return dag.Effects{}, true
	case "police":
		return dag.Effects{Reads: flow | dag.Length, Writes: dag.Encap | dag.IPOther, Drops: true, State: true}, true
	case "shape":
		return dag.Effects{Reads: dag.Length, Drops: true, Answers: true, State: true}, true
	case "firewall":
		return dag.Effects{Reads: flow | dag.L4Other | dag.Length, Drops: true, State: true}, true
	case "napt":
		return dag.Effects{Reads: flow | dag.L4Other, Writes: dag.Ethernet | dag.Encap | dag.IPAddresses | dag.Ports | dag.L4Other,
			Drops: true, Answers: true, State: true}, true
	case "balance":
		return dag.Effects{Reads: flow, Writes: dag.Ethernet | dag.Encap | dag.IPAddresses, Drops: true, State: true}, true
	case "aead", "vxlan", "nsh":
		return dag.Effects{Reads: dag.AllFields, Writes: dag.AllFields, Drops: true, Answers: true, State: kind == "aead"}, true
	case "gobackn", "kvcache", "replicate":
		return dag.Effects{Reads: dag.AllFields, Writes: dag.AllFields, Drops: true, Answers: true, State: true}, true
	}
	return dag.Effects{}, false
}

// UsesMemory says whether a function with these arguments keeps anything in memory that it is given
// (nf/memory). Of what does not come with quillon it is not known: it may.
func UsesMemory(kind string, args map[string]string) bool {
	_, known := Effects(kind)
	return !known || kind == "kvcache" || kind == "dummy" && touches(args)
}

// touches reports that a dummy with these arguments accesses memory.
func touches(args map[string]string) bool { return args["touch"] != "" && args["touch"] != "0" }

// names are those of fields, as a deployment has them.
func names(f dag.Field) []string { return strings.Split(f.String(), ",") }

// lately are the deployments that were read last, the newest first. A change has each read several times, also
// by workers, which have no time for that: one with 10,000 tenants takes seconds.
var lately struct {
	sync.Mutex
	read [4]struct {
		text string
		*dag.Deployment
	}
}

// deployment reads and checks a deployment, which nobody changes.
func deployment(text string) (*dag.Deployment, error) {
	lately.Lock()
	for _, r := range lately.read {
		if r.Deployment != nil && r.text == text {
			lately.Unlock()
			return r.Deployment, nil
		}
	}
	lately.Unlock()
	s, err := dag.Parse([]byte(text))
	if err != nil {
		return nil, err
	}
	d, err := Check(s, nil)
	if err != nil {
		return nil, err
	}
	lately.Lock()
	defer lately.Unlock()
	copy(lately.read[1:], lately.read[:])
	lately.read[0].text, lately.read[0].Deployment = text, d
	return d, nil
}

// fill says of tasks what a deployment does not: of those that come with quillon
// what is known, of others the most that a task can do to packets.
func fill(s *dag.Spec) {
	for name, t := range s.Tasks {
		if len(t.Reads) > 0 || len(t.Writes) > 0 || t.Drops || t.Answers || t.State {
			continue
		}
		e, ok := Effects(t.Kind)
		if t.Kind == "dummy" && touches(t.Args) {
			e.Drops, e.Answers, e.State = true, true, true // it has memory then, and waits for it
		}
		if !ok {
			e = dag.Effects{Reads: dag.AllFields, Writes: dag.AllFields, Drops: true, Answers: true, State: true}
		}
		t.Reads, t.Writes = names(e.Reads), names(e.Writes)
		t.Drops, t.Answers, t.State = e.Drops, e.Answers, e.State
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
