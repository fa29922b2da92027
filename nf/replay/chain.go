package replay

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/quillon/quillon/nf/graph"
)

// Chain returns the graph of the common case: ports a and b, and between them the given apps, one behind the
// other, in both directions. An app is written KIND[,arg=value...]. Its inputs and outputs must be called a
// and b.
func Chain(kinds []graph.Kind, nfs ...string) (*graph.Spec, error) {
	if len(nfs) == 0 {
		return nil, errors.New("no network function given")
	}
	s := &graph.Spec{
		Ports: map[string]graph.PortSpec{"a": {Kind: "pcap"}, "b": {Kind: "pcap"}},
		Apps:  map[string]graph.AppSpec{},
	}
	out, in := "a.out", "a.in" // output and input to the left of the next app
	sides := []string{"a", "b"}
	for _, nf := range nfs {
		parts := strings.Split(nf, ",")
		k := slices.IndexFunc(kinds, func(k graph.Kind) bool { return k.Name == parts[0] })
		if k < 0 {
			return nil, fmt.Errorf("no network function is called %q", parts[0])
		}
		if out := kinds[k].Out; !slices.Equal(kinds[k].In, sides) || len(out) < len(sides) || !slices.Equal(out[:len(sides)], sides) {
			return nil, fmt.Errorf("%s does not sit between two ports: write a spec for it", parts[0])
		}
		args := graph.Args{}
		for _, p := range parts[1:] {
			name, value, ok := strings.Cut(p, "=")
			if !ok {
				return nil, fmt.Errorf("%s: %q is not of the form arg=value", parts[0], p)
			}
			if _, twice := args[name]; twice {
				return nil, fmt.Errorf("%s: %s= is given twice", parts[0], name)
			}
			args[name] = value
		}
		name := parts[0]
		for n := 2; s.Apps[name].Kind != ""; n++ {
			name = fmt.Sprintf("%s-%d", parts[0], n)
		}
		s.Apps[name] = graph.AppSpec{Kind: parts[0], Args: args}
		s.Links = append(s.Links, out+" -> "+name+".a", name+".a -> "+in)
		out, in = name+".b", name+".b"
	}
	s.Links = append(s.Links, out+" -> b.in", "b.out -> "+in)
	return s, s.Validate(kinds, nil)
}
