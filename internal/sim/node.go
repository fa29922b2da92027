package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/dummy"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/packet"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/snic"
	"github.com/quillon/quillon/snic/attach"
	"github.com/quillon/quillon/snic/region"
)

// settle is how long a board has to load its regions.
const settle = time.Second

// node is an instance of the live board in virtual time: frames go in, frames and its next deadline come out.
type node struct {
	k      *kernel
	number uint32
	inst   *graph.Instance
	pools  []*packet.Pool // by worker
	batch  packet.Batch
	tickAt Time
	ports  []string
	cables map[int]*cable // by port
	err    error
	body   *body
}

// body is what is around a node.
type body struct {
	send  func(port int, x *packet.Buf) // a frame that leaves
	drop  func(x *packet.Buf)           // one that does not
	meter func(app graph.App, task string) graph.App
	kinds []graph.Kind // of tasks; nil: dummy
	// rx yields frames that came to a worker's queue of a port; nil: none do. See node.receive.
	rx func(port, worker int, b *packet.Batch) int
}

// frames is how many a pool has, and of how many bytes.
type frames struct{ n, size int }

// newNode makes an app, a board or a switch that boards are attached to, with these ports and so many workers.
func newNode(k *kernel, app string, args graph.Args, ports []string, workers int, f frames, seed uint64, around *body) (n *node, err error) {
	n = &node{k: k, tickAt: never, ports: ports, cables: map[int]*cable{}, body: around}
	for range workers {
		pool, err := packet.NewPool(f.n, packet.Headroom+max(f.size, 256), nil)
		if err != nil {
			return nil, err
		}
		n.pools = append(n.pools, pool)
	}
	tasks := around.kinds
	if tasks == nil {
		tasks = []graph.Kind{*dummy.Kind()}
	}
	kinds := []graph.Kind{*snic.Kind(tasks...), *attach.Kind(tasks...)}
	for _, task := range tasks {
		make := task.New
		task.New = func(env graph.Env, args graph.Args) (graph.App, error) {
			app, err := make(env, args)
			if err == nil && around.meter != nil {
				app = around.meter(app, strings.TrimPrefix(env.Name, appName+"/"))
			}
			return app, err
		}
		kinds = append(kinds, task)
	}
	cfg := graph.Config{
		Spec:  &graph.Spec{Ports: map[string]graph.PortSpec{}, Apps: map[string]graph.AppSpec{appName: {Kind: app, Args: args}}},
		Kinds: kinds, Ports: map[string][]port.Port{}, Seed: seed, OnDrop: around.drop,
	}
	for p, name := range ports {
		cfg.Spec.Ports[name] = graph.PortSpec{Kind: "sim"}
		for w := range workers {
			cfg.Ports[name] = append(cfg.Ports[name], &jack{outlet{name: name, pool: n.pools[w]}, n, p, w})
		}
		cfg.Spec.Links = append(cfg.Spec.Links, name+".out -> "+appName+"."+name, appName+"."+name+" -> "+name+".in")
	}
	n.number = k.add(n)
	n.inst, err = graph.New(cfg)
	return n, err
}

// pairs are the names of a board's ports that are used: every one has its opposite.
func pairs(n int) (names []string) {
	for p := range n &^ 1 {
		names = append(names, "p"+strconv.Itoa(p))
	}
	return names
}

// cable is one direction of a cable to another node.
type cable struct {
	link
	to   *node
	port int
}

// worker is the one that a frame comes to: as a network card chooses it, by addresses and ports.
func (n *node) worker(frame []byte) int {
	if len(n.pools) == 1 {
		return 0
	}
	if binary.BigEndian.Uint16(frame[12:]) == hdr.EtherNSH {
		frame = frame[hdr.EthernetLen+8:] // between boards: of the frame inside
	}
	h := uint32(2166136261) // FNV-1a
	for _, b := range frame[26:38] {
		h = (h ^ uint32(b)) * 16777619
	}
	return int(h>>8) % len(n.pools)
}

// view is the board as its first worker reports it.
func (n *node) view() snic.View {
	return graph.Report(n.inst.App(appName, 0).(graph.Reporter)).(snic.View)
}

// load lets time pass until all DAGs have their regions.
func (n *node) load() error {
	if _, err := n.inst.Step(0); err != nil {
		return err
	}
	n.tick()
	for at := Millisecond; at < From(settle) && n.err == nil; at += Millisecond {
		for n.k.next() <= at {
			n.k.step()
		}
		n.k.now = at
		v := n.view()
		there := func(d snic.DAGView) bool { return d.State == "ready" || strings.HasPrefix(d.State, "at worker ") }
		waits := slices.ContainsFunc(v.DAGs, func(d snic.DAGView) bool { return !there(d) })
		loads := slices.ContainsFunc(v.Regions, func(r snic.RegionView) bool {
			return r.State == region.Loading.String() || r.State == region.Queued.String()
		})
		if !waits && !loads && len(v.DAGs) > 0 {
			return nil
		}
		if waits && !loads {
			for _, d := range v.DAGs {
				if !there(d) {
					return fmt.Errorf("DAG %d, %s: no region runs it: it is %s", d.UID, d.Run, d.State)
				}
			}
		}
	}
	return n.err
}

// tick plans the board's next deadline.
func (n *node) tick() {
	if at := n.inst.NextTick(); at != clock.Never {
		if t := max(fromClock(at), n.k.now+Nanosecond); t < n.tickAt {
			n.tickAt = t
			n.k.plan(t, n.number, nodeTick, 0, nil)
		}
	}
}

// Kinds of events of a node.
const (
	nodeTick   uint32 = iota // its deadline
	nodeArrive               // a frame, by a cable
)

// fire implements actor.
func (n *node) fire(kind uint32, port uint64, x *packet.Buf) {
	if kind == nodeArrive {
		n.receive(int(port), x.Bytes())
		x.Put()
		return
	}
	if n.tickAt > n.k.now {
		return
	}
	n.tickAt = never
	_, err := n.inst.Step(n.k.now.Clock())
	n.note(err)
	n.tick()
}

func (n *node) note(err error) {
	if n.err == nil {
		n.err = err
	}
}

// receive gives the board a frame.
func (n *node) receive(port int, frame []byte) {
	w := n.worker(frame)
	x := n.pools[w].Get()
	if x == nil || !x.SetBytes(frame) {
		n.note(errors.New("the board has more packets than it may"))
		return
	}
	x.RxTime = int64(n.k.now.Clock())
	n.batch.Reset()
	n.batch.Add(x)
	n.note(n.inst.PushTo(w, n.ports[port], n.k.now.Clock(), &n.batch))
	n.tick()
}

// frameOf is a packet of source i: a UDP datagram from 10.0.0.i.
func frameOf(i, size int) []byte {
	p := make([]byte, 12, size)
	p = binary.BigEndian.AppendUint16(p, hdr.EtherIPv4)
	p = append(p, 0x45, 0)
	p = binary.BigEndian.AppendUint16(p, uint16(size-14))
	p = append(p, 0, 0, 0, 0, 64, hdr.ProtoUDP, 0, 0, 10, 0, 0, byte(i), 10, 0, 1, 1, 0, 9, 0, 80)
	p = binary.BigEndian.AppendUint16(p, uint16(size-34))
	return append(p, make([]byte, size-len(p))...)
}

// sourceOf is the source of a packet, whatever tasks have declared that they write.
func sourceOf(x *packet.Buf) int { return int(x.Bytes()[29]) }

// jack is a port of the board, a worker's part of it.
type jack struct {
	outlet
	n              *node
	number, worker int
}

func (j *jack) Rx(b *packet.Batch) (int, error) {
	if j.n.body.rx == nil {
		return 0, nil
	}
	return j.n.body.rx(j.number, j.worker, b), nil
}

func (j *jack) Tx(b *packet.Batch) (int, error) {
	n := b.Len()
	for _, x := range b.Bufs() {
		j.stats.TxPackets++
		j.stats.TxBytes += uint64(x.Len())
		if c := j.n.cables[j.number]; c != nil {
			at, _ := c.send(j.n.k.now, x) // it waits for as long as it takes
			j.n.k.plan(at, c.to.number, nodeArrive, uint64(c.port), x)
			continue
		}
		j.n.body.send(j.number, x)
		x.Put()
	}
	b.Shift(n)
	return n, nil
}
