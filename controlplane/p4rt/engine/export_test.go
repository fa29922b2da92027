package engine

import (
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/nf/p4"
)

// Of is a pipeline of a switch that no device runs.
func Of(info *p4info.Info, json []byte, sw *p4.Switch) (p4rt.Pipeline, error) {
	return (&Device{}).pipeline(info, json, sw)
}

// Steps makes an update on a pipeline that no device runs, and counts in how many
// parts.
func Steps(x p4rt.Pipeline, u *p4v1.Update) (int, error) {
	p := x.(*pipeline)
	e := p4info.Of(u.GetEntity())
	do := p.prepare(u.GetType(), &e, true)
	for n := 1; ; n++ {
		if _, err := do(p.sw); err != errMore {
			return n, err
		}
	}
}

// Restore does now what a device does from time to time.
func Restore(d *Device) { d.restore() }

// Runs reports whether the app runs the pipeline that was committed last.
func Runs(d *Device) (yes bool, err error) {
	err = d.app(func(a *p4.App) { yes = a.Switch() == d.current.Load().sw })
	return yes, err
}

// Mappings are those of strings that an annotation has, for values of so many bits.
func Mappings(annotation string, bits int) (map[string]uint64, error) {
	n := &names{words: true, bits: 64, to: map[string]uint64{}, from: map[uint64]string{}}
	if err := n.mappings(annotation); err != nil {
		return nil, err
	}
	return n.to, n.fits(bits)
}

// NextSet makes id the next one for a part of an action set of the device's pipeline.
func NextSet(d *Device, id uint32) { d.current.Load().nextSet = id }
