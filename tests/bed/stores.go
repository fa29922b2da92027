package bed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/quillon/quillon/internal/rack/clover"
	"github.com/quillon/quillon/internal/rack/history"
	"github.com/quillon/quillon/internal/rack/history/fault"
	"github.com/quillon/quillon/internal/rack/host"
	"github.com/quillon/quillon/nf/hdr"
	"github.com/quillon/quillon/nf/port"
	"github.com/quillon/quillon/rack/rnic"
)

// StoreWorld is Clover's store on a rack where everything may go wrong that may go
// wrong on a bare wire, too.
type StoreWorld struct {
	Store   Store
	MTU     int
	Profile rnic.Profile
	Conn    rnic.Conn
	Spoofs  []Spoof
	Rogue   Rogue
	Ends    []time.Duration // of the box, which comes back soon
	Faults  fault.Mix
	IPv6    bool
	Workers int     // of the box; 0 = 1
	Sets    []Spoof // when the box is given another setting of Box.Reloads, by Seed
}

// RandomStore is the store world that a seed stands for.
//
// From seed LibraryStores on clients search as Clover's library does.
func RandomStore(seed uint64) StoreWorld {
	rng := rand.New(rand.NewPCG(seed, 0x73746f7265))
	w := StoreWorld{
		Store: Store{Clients: 1 + rng.IntN(3), Sessions: 1 + rng.IntN(4), Ops: 20 + rng.IntN(60), Keys: 1 + rng.IntN(4)},
		MTU:   256 << rng.IntN(3), Profile: rnic.Profile(rng.IntN(2)), Conn: rnic.DefaultConn(),
	}
	w.Conn.Timeout, w.Conn.PathMTU = 4+rng.IntN(2), w.MTU
	w.Conn.MaxDestRdAtomic = []int{1, 4, 16}[rng.IntN(3)]
	w.Conn.MaxRdAtomic = min(w.Conn.MaxDestRdAtomic, 1+rng.IntN(16))
	if rng.IntN(2) == 0 {
		w.Faults = fault.Mix{Links: append(links([]string{}, 0), "in", "s0", "g0", "g1"), Frames: 1 + rng.IntN(12), Within: 20 + rng.IntN(300)}
	}
	if rng.IntN(4) == 0 {
		w.Faults.Machines, w.Faults.Deaths, w.Faults.Until, w.Faults.Absence = []string{"g1"}, 1, 600*time.Microsecond, time.Second
	}
	if rng.IntN(3) == 0 {
		for range 1 + rng.IntN(3) {
			w.Ends = append(w.Ends, time.Duration(rng.IntN(2000))*time.Microsecond)
		}
		slices.Sort(w.Ends)
	}
	if rng.IntN(2) == 0 {
		v := World{Queues: make([]Queue, w.Store.Clients)}
		for range 1 + rng.IntN(4) {
			v.spoofs(rng, 0, numTricks, Limits{})
		}
		if wide := rand.New(rand.NewPCG(seed, 0x77696465)); wide.IntN(2) == 0 {
			v.spoofs(wide, numTricks, numWideTricks, Limits{})
		}
		w.Spoofs = v.Spoofs
	}
	if seed >= LibraryStores {
		w.Store.Search = clover.SearchLibrary
	}
	if rng.IntN(2) == 0 {
		w.Store.Slab = 128 << rng.IntN(5) // up to eight packets
	}
	if rng.IntN(4) == 0 {
		w.Rogue = Rogue{Powerless: rng.IntN(4) == 0, Unheard: rng.IntN(4) == 0}
		for range 1 + rng.IntN(3) {
			w.Rogue.Strikes = append(w.Rogue.Strikes, time.Duration(2200+rng.IntN(2000))*time.Microsecond)
		}
		// Long enough for a box to follow it, and with others who append at that moment.
		w.Store.Clients, w.Store.Sessions, w.Store.Ops = max(w.Store.Clients, 2), max(w.Store.Sessions, 3), 200+rng.IntN(300)
	}
	return w
}

// LibraryStores is the first seed of store worlds with clover.SearchLibrary.
const LibraryStores = uint64(1) << 48

// WildStore is RandomStore with more workers, IPv6, and settings that change under traffic.
func WildStore(seed uint64) StoreWorld {
	w := RandomStore(seed)
	rng := rand.New(rand.NewPCG(seed, 0x77696c64))
	w.Workers, w.IPv6 = 1+rng.IntN(4), rng.IntN(4) == 0
	if rng.IntN(2) == 0 {
		for range 1 + rng.IntN(6) {
			w.Sets = append(w.Sets, Spoof{At: time.Duration(rng.IntN(3000)) * time.Microsecond, Seed: rng.Uint64()})
		}
		slices.SortFunc(w.Sets, func(a, b Spoof) int { return int(a.At - b.At) })
	}
	return w
}

// Run plays it through the box, or on a bare wire when there is none.
func (w StoreWorld) Run(seed uint64, box *Box, s fault.Schedule) (*MixedResult, error) {
	senders := w.Store.Clients + 2
	bad := &rogue{}
	if box != nil {
		x := *box
		box, x.Workers = &x, w.Workers
	}
	b, err := New(Config{
		IPv6: w.IPv6, Clients: 1, Guests: senders, Sessions: 1, MTU: w.MTU, Profile: w.Profile, Conn: w.Conn, Box: box, Schedule: s, Seed: seed,
		Serve: func(*rnic.PD) error { return nil },
		App:   func(*Bed, *Client) (host.App, error) { return bad, nil },
	})
	if err != nil {
		return nil, err
	}
	res := &MixedResult{Keys: new(history.Log[history.Register, uint64])}
	store, err := w.Store.load(b, seed, res)
	if err != nil {
		return nil, err
	}
	space := store.cl.Layout()[0]
	*bad = rogue{Rogue: w.Rogue, b: b, c: b.clients[0], cl: store.cl, rng: rand.New(rand.NewPCG(seed, 0x726f677565)), next: b.start, entry: space.FirstLH + space.Count - 1}
	at, mac, ip := b.Guest(senders - 1)
	b.Attach(senders-1, host.NewNode(at, w.adversary(b, at, mac, ip), nil))
	ends, sets := slices.Clone(w.Ends), slices.Clone(w.Sets)
	err = b.Run(func() bool {
		for len(ends) > 0 && b.start.Add(ends[0]) <= b.Clock.Now() {
			ends = ends[1:]
			err = errors.Join(err, b.box.down(), b.box.up())
		}
		for len(sets) > 0 && b.start.Add(sets[0].At) <= b.Clock.Now() {
			if b.box.inst != nil && box != nil && len(box.Reloads) > 0 {
				_, _ = b.box.inst.Set("box", box.Reloads[sets[0].Seed%uint64(len(box.Reloads))])
			}
			sets = sets[1:]
		}
		return store.done(b) && !b.More()
	}, longest)
	if err == nil {
		err = b.Settle(time.Millisecond)
	}
	res.Took, res.Struck = b.Clock.Now().Sub(b.start), b.Struck()
	if b.Instance() != nil {
		res.Counters = b.Instance().Counters()
	}
	if e := store.check(b, err); e != nil && err == nil {
		err = e
	}
	if n := store.cl.ClientStats().Errors; err == nil && n > 0 && len(w.Faults.Machines) == 0 && w.Profile == rnic.RXE {
		err = fmt.Errorf("%d queue pairs failed, and rxe's never give up", n)
	}
	return res, errors.Join(err, b.Close())
}

// adversary sends the world's spoofed frames, about the store's connections.
func (w StoreWorld) adversary(b *Bed, at port.Port, mac [6]byte, own netip.Addr) host.Endpoint {
	h := &Sender{pool: b.Pool}
	for _, x := range w.Spoofs {
		h.At(b.start.Add(x.At), func() []byte {
			client := b.machines[b.cfg.Clients+1+x.Victim]
			ends := b.ends(client.ip)
			if len(ends) == 0 {
				return nil
			}
			q := ends[x.Seed%uint64(len(ends))]
			t := target{
				Connection: Connection{ClientMAC: client.mac, ServerMAC: b.server.mac, ClientIP: client.ip, ServerIP: b.server.ip, ClientQPN: q.Conn().DestQPN, ServerQPN: q.QPN, ClientPSN: clover.FirstPSN, ServerPSN: clover.FirstPSN},
				reach:      []Reach{{0x7f0000000000, 1}}, mac: mac, own: own, mtu: w.MTU,
			}
			n := (q.Expected() - t.ClientPSN) & hdr.PSNMask
			if n > 0 {
				t.used = 1
			}
			t.next, t.clear = (t.ClientPSN+n+1)&hdr.PSNMask, 1<<12
			t.una = (t.next - min(n, 4)) & hdr.PSNMask
			return x.frame(&t)
		})
	}
	return h
}

// ends are the server's queue pairs whose peer is at an address.
func (b *Bed) ends(client netip.Addr) (ends []*rnic.QP) {
	for qpn := b.nic.Config().FirstQPN; ; qpn++ {
		q := b.nic.QP(qpn)
		if q == nil {
			return ends
		}
		if q.Conn().RemoteIP == client {
			ends = append(ends, q)
		}
	}
}

// SweepStores plays the store worlds of the seeds from first on, and fails the test
// with the first that go wrong through the box, with the fewest faults and frames.
func SweepStores(tb testing.TB, box *Box, first uint64, n int) {
	tb.Helper()
	counts := map[string]uint64{}
	var mu sync.Mutex
	failed, undecided := each(first, n, 2, func(seed uint64) error {
		mine := map[string]uint64{}
		err := TryStore(seed, box, nil, mine)
		mu.Lock()
		defer mu.Unlock()
		for name, v := range mine {
			counts[name] += v
		}
		return err
	})
	for _, seed := range failed {
		var w StoreWorld
		if err := TryStore(seed, box, &w, counts); err != nil {
			tb.Errorf("seed %d (QUILLON_SEED=%d repeats it): %v\n%+v", seed, seed, err, w)
		}
	}
	tb.Logf("%d store worlds, %d undecided: %v", n, undecided, counts)
	if undecided > 1+n/100 {
		tb.Errorf("%d of %d histories are undecided", undecided, n)
	}
}

// TryStore plays a seed's store world on a bare wire and through the box; small, if
// not nil, is given the least of the world that still fails. The box's counters are
// added to counts.
func TryStore(seed uint64, box *Box, small *StoreWorld, counts map[string]uint64) error {
	return tryStore(RandomStore(seed), seed, box, small, counts)
}

// TryWildStore is TryStore for WildStore.
func TryWildStore(seed uint64, box *Box, small *StoreWorld, counts map[string]uint64) error {
	return tryStore(WildStore(seed), seed, box, small, counts)
}

func tryStore(w StoreWorld, seed uint64, box *Box, small *StoreWorld, counts map[string]uint64) error {
	s := fault.Random(seed, w.Faults)
	play := func(w StoreWorld, s fault.Schedule) error {
		wire, err := w.Run(seed, nil, s)
		if err != nil {
			return errors.Join(ErrLaw, err)
		}
		if box == nil {
			return nil
		}
		through, err := w.Run(seed, box, s)
		if through != nil {
			for _, c := range through.Counters {
				if c.Node == "box" && c.Value > 0 {
					counts[c.Name] += c.Value
				}
			}
		}
		if most := 10*wire.Took + 100*time.Millisecond; err == nil && through.Took > most {
			err = fmt.Errorf("through the box it took %v, %v on the bare wire", through.Took, wire.Took)
		}
		return err
	}
	err := play(w, s)
	if err == nil || small == nil {
		return err
	}
	fails := func(w StoreWorld, s fault.Schedule) bool {
		e := play(w, s)
		if e == nil || errors.Is(e, ErrLaw) != errors.Is(err, ErrLaw) {
			return false
		}
		err = e
		return true
	}
	s = fault.Shrink(s, 50, func(s fault.Schedule) bool { return fails(w, s) })
	w.Spoofs = fewer(w.Spoofs, func(x []Spoof) bool { v := w; v.Spoofs = x; return fails(v, s) })
	w.Ends = fewer(w.Ends, func(x []time.Duration) bool { v := w; v.Ends = x; return fails(v, s) })
	w.Sets = fewer(w.Sets, func(x []Spoof) bool { v := w; v.Sets = x; return fails(v, s) })
	for _, simple := range []func(*StoreWorld){func(w *StoreWorld) { w.Workers = 1 }, func(w *StoreWorld) { w.IPv6 = false }} {
		v := w
		if simple(&v); fails(v, s) {
			w = v
		}
	}
	w.Rogue.Strikes = fewer(w.Rogue.Strikes, func(x []time.Duration) bool { v := w; v.Rogue.Strikes = x; return fails(v, s) })
	*small = w
	return fmt.Errorf("%w\n%v", err, s)
}
