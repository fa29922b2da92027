package engine

import (
	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/nf/p4"
)

// Of is a pipeline of a switch that no device runs.
func Of(info *p4info.Info, json []byte, sw *p4.Switch) (p4rt.Pipeline, error) {
	return (&Device{}).pipeline(info, json, sw)
}
