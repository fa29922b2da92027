// Package registry lists the network functions that come with quillon: the one list of the program and of tests.
package registry

import (
	"slices"
	"sync"

	"github.com/quillon/quillon/nf/aead"
	"github.com/quillon/quillon/nf/arbiter"
	"github.com/quillon/quillon/nf/balance"
	"github.com/quillon/quillon/nf/dummy"
	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/gobackn"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/kvcache"
	"github.com/quillon/quillon/nf/mirror"
	"github.com/quillon/quillon/nf/napt"
	"github.com/quillon/quillon/nf/nsh"
	"github.com/quillon/quillon/nf/p4/xdp"
	"github.com/quillon/quillon/nf/police"
	"github.com/quillon/quillon/nf/replicate"
	"github.com/quillon/quillon/nf/vxlan"
	"github.com/quillon/quillon/snic"
	"github.com/quillon/quillon/snic/attach"
	"github.com/quillon/quillon/snic/hop/wire"
	"github.com/quillon/quillon/tor/clover"
	"github.com/quillon/quillon/tor/fence"
	"github.com/quillon/quillon/tor/swordbox"
)

// Kinds are the apps that a Spec may name.
func Kinds() []graph.Kind { return slices.Clone(declared()) }

// declared is made once: a SuperNIC remembers deployments that it has read.
var declared = sync.OnceValue(func() []graph.Kind {
	f := Functions()
	return append(f, *snic.Kind(f...), *attach.Kind(f...))
})

// Functions are those that may be tasks of a board, too.
func Functions() []graph.Kind {
	return append(graph.Builtin(),
		*clover.Kind(),
		*swordbox.Kind(),
		*fence.Kind(),
		*xdp.Kind(),
		*aead.Kind(),
		*arbiter.Kind(),
		*balance.Kind(),
		*dummy.Kind(),
		*gobackn.Kind(),
		*kvcache.Kind(),
		*mirror.Kind(),
		*replicate.Kind(),
		*firewall.Kind(),
		*police.Kind(),
		*police.ShapeKind(),
		*napt.Kind(),
		*nsh.Kind(),
		*vxlan.Kind(),
		*wire.Kind(),
	)
}
