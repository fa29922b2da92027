package main

import (
	"github.com/quillon/quillon/nf/graph"
)

// kinds are the apps that a Spec may name.
func kinds() []graph.Kind {
	return []graph.Kind{}
}
