// Package fair shares a board among tenants. For an epoch it measures how much each tenant would use
// of every resource. It divides the resources by weighted dominant resource fairness (snic/drf). In
// the next epoch it limits each tenant's ingress, and only that, so that the tenant uses no more than
// it got.
//
// # Resources
//
// The owner of a Sharer numbers the resources: ingress and egress of each port, each network task
// (its capacity is that of its running instances together), the packet store, memory. There are two
// sorts:
//
//   - Flows are used up by packets. Their unit is any amount a second: bytes of a port or of a
//     task; bytes times nanoseconds of the packet store, whose capacity is its bytes times a
//     second. A tenant uses them in proportion to what it sends, so that limiting its ingress
//     limits its use of all flows.
//   - Held resources, the last Config.Held of them, are kept whatever a tenant sends: memory.
//     Another package gives them out (snic/vmem), and the owner reports how much each tenant has
//     (Hold). This amount is part of the tenant's demand, and may be its dominant share; but a held
//     resource is never full here, and limits no tenant.
//
// One flow may be queued (Queue): packets wait for it at the owner, which shares it out when it serves them.
// This flow is divided like the others, but no packet is refused for it here. A tenant that lacks nothing else
// may send all that it asks for, and the owner refuses packets that it has no room for (Refuse). Part says how
// much heavier a unit of the queued flow counts for a tenant whose dominant share is of another flow.
//
// # Epochs
//
// The owner calls Measure for each flow before it dispatches the packet to it, best in the breath in
// which the packet came in, whether or not there is a credit for the packet. Packets that Ingress
// refuses are not measured. So the demand of a tenant is the measured use, times bytes arrived over
// bytes let in; if all of a tenant's packets were refused, its demand is estimated by the use of its
// earlier bytes. The rate of arrival is that of the epoch or of its latter half, whichever is more,
// so that a load that has risen counts as what it is at the end.
//
// At the end of an epoch each tenant gets a fraction of its demand, its grant. In the next epoch its
// limit is this fraction of the rate at which it sent. Each flow has a pool of what no tenant was
// granted: a tenant over its limit may send on while each pool that it draws on has something left.
// So
//
//   - a tenant that gets less than it asks for stays at its grant, because the pool of its full
//     resource is empty;
//   - a tenant that got everything and sends more gets what is in the pools, at once, and no more:
//     other tenants keep what they have until the epoch ends;
//   - a tenant that was idle, or is new, also gets what is in the pools, and its share in the next
//     epoch. Expect, or the measure of its first packets, says what a new tenant will use. While
//     nothing is known, it is let in while no pool at all is empty, and for one burst otherwise.
//
// A task without a running instance has a capacity of 0. A tenant that needs it is let in for one
// burst (which starts the task); then its packets are refused until the epoch after the one in which
// the task runs.
//
// # Limits
//
// A limit is a token bucket in bytes. It holds what its rate brings in an eighth of an epoch, and at
// least Config.Burst. A pool also holds an eighth of an epoch, and at least Config.Slack of its flow.
// A packet is let in while the bucket is not empty. The packet may leave a debt, which is paid before
// the next packet is let in. So long packets are not at a disadvantage, a tenant's rate is exact, and
// no bucket is ever above its burst. A tenant that gets all that it asks for earns in an epoch what
// it sent in the epoch before; so a tenant that sends a packet from time to time is never refused
// while it stays within its share. Where packets come in batches, Burst should be at least a batch.
//
// A full resource is granted to the last byte. So packets that are let in ahead of their rate wait in
// front of it until some tenant sends less. They are at most all bursts together, however long the
// resource is full.
//
// # More tenants than rows
//
// Tenants that sent nothing in an epoch cost no time. When more tenants are active than the solver has
// rows, tenants of similar level (dominant share over weight) share a row and get the same fraction.
// The first row has all tenants whose level is no more than an equal split of everything: these get
// all that they ask for, as in rows of their own. The other rows are spaced by the logarithm of the
// level. A row's weight is chosen so that it gets the mean level of its tenants. So each tenant gets
// at least an equal split divided by the ratio of the levels in its row (the ratio is 1.06 for 256
// rows and levels that are a million apart).
//
// # Parts
//
// A board of several workers has a Sharer for each worker (a part), and one for the whole board. A part divides
// what its worker has alone. From time to time each part reports its tenants' demands (Demands), and the owner
// passes them to the Sharer of the whole (Ask). That one divides what all workers share, in epochs of its own.
// The result bounds the divisions of each part (Bound, Leave): of a tenant's grant of the whole it gets the
// part that corresponds to the tenant's demand there, and of what no tenant was granted an equal part. Other
// parts do not know what a tenant asks for until the next report. So a tenant that begins at all of n workers
// at once gets at most n bursts and, until two divisions of the whole have passed, what n boards would give it.
// A part that had no demand of a tenant bounds it by its own division alone.
//
// Sources: Shan, SuperNIC (UCSD thesis, 2022, chapter 5): section 5.4.4 for epochs, measured demands
// and limits on ingress alone; figures 5.7 and 5.20 for what a tenant may use that sends more within
// an epoch.
package fair

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/drf"
)

const (
	// DefaultEpoch is the source's EPOCH_LEN.
	DefaultEpoch = 20 * time.Microsecond
	// DefaultBurst is two full Ethernet frames.
	DefaultBurst = 2 * 1518
	// DefaultRows is how many tenants can have a row of their own.
	DefaultRows = 256
	// MaxWeight is the greatest weight, 1/MaxWeight the least.
	MaxWeight = 1 << 10

	// window is the part of an epoch that a bucket holds.
	window = 1. / 8
	// nothing is the part of a capacity that counts as none of it.
	nothing = 1e-9
	// maxCapacity is far beyond any board.
	maxCapacity = 1e24
	// maxRatio is how much heavier a row may be than another.
	maxRatio = 1 << 20
	// known is how many bytes Expect's vector is kept for.
	known = 1 << 20
)

// Config holds the sizes of a Sharer.
type Config struct {
	// Tenants is how many there can be, numbered from 0.
	Tenants int
	// Resources are numbered from 0; the last Held of them are held.
	Resources, Held int
	// Rows is how many tenants the solver takes one by one.
	Rows int // 0: DefaultRows
	// Epoch must be longer than what a division takes.
	Epoch clock.Duration // 0: DefaultEpoch
	// Burst is the least that a bucket holds, in bytes.
	Burst int // 0: DefaultBurst
	// Slack is the time for which a pool keeps unused amounts of its flow, even while all of the flow
	// is granted. It should be as long as the owner may be away: then packets come in one clump. 0: an
	// eighth of an epoch of what is not granted.
	Slack clock.Duration
	// Parts is how many Sharers a board has, one a worker: see the package. 0: 1.
	Parts int
}

// Sharer divides a board among tenants. Only one goroutine at a time may use it. Only New allocates,
// and Demands if its argument has too little room.
type Sharer struct {
	epochLen clock.Duration
	window   float64 // ns
	slack    float64 // ns
	burst    float64
	parts    float64
	flows    int
	held     int

	epoch    uint32
	reported clock.Time // Demands
	start    clock.Time
	half     clock.Time
	tenants  []tenant
	counts   []int64 // two rows of flows for each tenant
	holds    []int64 // a row of held resources for each tenant
	holding  []int64 // the sum of them
	active   []int32 // tenants seen in this epoch
	before   []int32 // and in the one before
	asking   []int32 // tenants with recent bytes
	pools    []pool

	stretch    float64 // of the epoch over its latter half
	solver     *drf.Solver
	rows       int
	perSecond  []float64 // capacities; of what is held, all of it
	capacity   []float64 // of the epoch
	asked      []float64
	weight     []float64
	demand     []float64
	grant      []float64
	heavy      []float64 // of a row of several: the sum of weights
	shares     []float64 // and of dominant shares
	row        []float64
	queued     int     // a flow for which packets wait; -2: none
	bottleneck []int32 // of each tenant
	usage      []Usage
}

// Usage is what a tenant has had since New, all epochs together.
type Usage struct {
	Share    float64 // the dominant share of what was admitted, times nanoseconds
	Arrived  float64 // bytes
	Admitted float64 // of them
}

// tenant is what is known of one. Its rows in counts are 2i, 2i+1.
type tenant struct {
	tokens, rate, burst float64 // bytes, bytes/ns
	last                clock.Time
	arrived, admitted   int64
	late                int64  // what arrived in the latter half
	epoch               uint32 // the last one that it was seen in
	scarce              int32  // the pool that refused it last
	count, vector       uint32 // where in counts it is counted, and its vector is
	// bytes is what its vector is for; 0: it has none.
	bytes  float64
	asked  float64 // bytes that count as arrived in the epoch
	scale  float64 // its demand, in vectors
	rest   bool    // its demand is not its vector but what was counted
	weight float64
	least  float64 // bytes/ns that the whole board grants here
	most   float64 // and what it may have at most; +Inf: no limit
	grant  float32
	share  float32 // dominant
	level  float32 // wanted, over its weight
	fully  int32   // the resource that is full in the whole board
	recent float64 // bytes that count as arrived since Demands
}

// pool holds the amount of a flow that no tenant was granted.
type pool struct {
	tokens, rate float64 // a unit, units/ns
	slack        float64 // tokens that it keeps, whatever its rate is
	most         float64 // units/ns that the whole board has left for it; +Inf: no limit
	last         clock.Time
}

// New makes a Sharer whose first epoch begins at now. All weights are 1, all
// capacities 0.
func New(now clock.Time, c Config) (*Sharer, error) {
	c.Rows = cmp.Or(c.Rows, DefaultRows)
	c.Epoch = cmp.Or(c.Epoch, DefaultEpoch)
	c.Burst = cmp.Or(c.Burst, DefaultBurst)
	c.Parts = max(c.Parts, 1)
	flows := c.Resources - c.Held
	switch {
	case c.Tenants < 1 || c.Tenants > 1<<20:
		return nil, fmt.Errorf("fair: %d tenants: want 1 to %d", c.Tenants, 1<<20)
	case c.Held < 0 || flows < 1 || c.Resources > 1<<10:
		return nil, fmt.Errorf("fair: %d resources, %d held: want 1 to %d that are not held", c.Resources, c.Held, 1<<10)
	case c.Rows < 2 || c.Rows > 1<<16:
		return nil, fmt.Errorf("fair: %d rows: want 2 to %d", c.Rows, 1<<16)
	case c.Epoch < time.Microsecond || c.Epoch > time.Minute:
		return nil, fmt.Errorf("fair: epoch of %v: want 1µs to 1m", c.Epoch)
	case c.Slack < 0 || c.Slack > time.Second:
		return nil, fmt.Errorf("fair: slack of %v: want 0 to 1s", c.Slack)
	case c.Burst < 1 || c.Burst > 1<<30:
		return nil, fmt.Errorf("fair: burst of %d bytes: want 1 to %d", c.Burst, 1<<30)
	}
	rows := min(c.Rows, c.Tenants)
	s := &Sharer{
		epochLen: c.Epoch, window: float64(c.Epoch) * window, slack: float64(c.Slack) / float64(c.Parts), burst: float64(c.Burst), flows: flows, held: c.Held,
		parts: float64(c.Parts),
		epoch: 1, reported: now, start: now, half: now.Add(c.Epoch / 2),
		tenants: make([]tenant, c.Tenants),
		counts:  make([]int64, 2*c.Tenants*flows),
		holds:   make([]int64, c.Tenants*c.Held),
		holding: make([]int64, c.Held),
		active:  make([]int32, 0, c.Tenants),
		before:  make([]int32, 0, c.Tenants),
		asking:  make([]int32, 0, c.Tenants),
		pools:   make([]pool, flows),

		solver: drf.New(rows, c.Resources), rows: rows,
		perSecond:  make([]float64, c.Resources),
		capacity:   make([]float64, c.Resources),
		asked:      make([]float64, c.Resources),
		weight:     make([]float64, rows),
		demand:     make([]float64, rows*c.Resources),
		grant:      make([]float64, rows),
		heavy:      make([]float64, rows),
		shares:     make([]float64, rows),
		row:        make([]float64, c.Resources),
		bottleneck: make([]int32, c.Tenants),
		usage:      make([]Usage, c.Tenants),
		queued:     -2,
	}
	for i := range s.tenants {
		s.tenants[i] = tenant{
			tokens: s.burst, burst: s.burst, last: now, weight: 1, grant: 1, scarce: -1, most: math.Inf(1), fully: -1,
			count: uint32(2 * i), vector: uint32(2*i + 1),
		}
		s.bottleneck[i] = -1
	}
	for r := range s.pools {
		s.pools[r].last, s.pools[r].most = now, math.Inf(1)
	}
	return s, nil
}

// SetCapacity sets the capacity of a resource: of a flow in its unit a second, of a held resource in
// its unit. An addition to a flow goes to its pool at once, and is divided from the next epoch on.
func (s *Sharer) SetCapacity(resource int, amount float64) error {
	if resource < 0 || resource >= len(s.perSecond) {
		return fmt.Errorf("fair: resource %d: there are %d", resource, len(s.perSecond))
	}
	if !(amount == 0 || amount >= 1 && amount <= maxCapacity) {
		return fmt.Errorf("fair: capacity %g of resource %d: want 0, or 1 to %g", amount, resource, maxCapacity)
	}
	if resource < s.flows {
		p := &s.pools[resource]
		p.slack = amount / 1e9 * s.slack
		s.setPool(p, max(0, p.rate+(amount-s.perSecond[resource])/1e9/s.parts))
	}
	s.perSecond[resource] = amount
	return nil
}

// setPool gives a pool a rate. A pool that had none, and no debt, begins full.
func (s *Sharer) setPool(p *pool, rate float64) {
	if p.rate == 0 && p.tokens == 0 {
		p.tokens = rate * s.window
	}
	p.rate = rate
	p.tokens = min(p.tokens, max(rate*s.window, p.slack))
}

// Queue sets the flow that is queued: packets wait for it, and are not refused for it here.
func (s *Sharer) Queue(flow int) error {
	if flow < 0 || flow >= s.flows {
		return fmt.Errorf("fair: flow %d: there are %d", flow, s.flows)
	}
	s.queued = flow
	return nil
}

// SetWeight sets a tenant's weight, 1/MaxWeight to MaxWeight, from the next epoch
// on.
func (s *Sharer) SetWeight(tenant int, weight float64) error {
	if tenant < 0 || tenant >= len(s.tenants) {
		return fmt.Errorf("fair: tenant %d: there are %d", tenant, len(s.tenants))
	}
	if !(weight >= 1./MaxWeight && weight <= MaxWeight) {
		return fmt.Errorf("fair: weight %g of tenant %d: want 1/%d to %d", weight, tenant, MaxWeight, MaxWeight)
	}
	s.tenants[tenant].weight = weight
	return nil
}

// Expect sets how much a byte of a tenant will use of each flow. The values hold until the tenant is
// measured. The owner calls Expect again when the tenant's tasks change.
func (s *Sharer) Expect(tenant int, perByte []float64) error {
	if tenant < 0 || tenant >= len(s.tenants) {
		return fmt.Errorf("fair: tenant %d: there are %d", tenant, len(s.tenants))
	}
	if len(perByte) != s.flows {
		return fmt.Errorf("fair: %d uses of tenant %d: there are %d flows", len(perByte), tenant, s.flows)
	}
	for r, v := range perByte {
		if !(v >= 0 && v <= 1<<30) {
			return fmt.Errorf("fair: use %g of resource %d by tenant %d: want 0 to %d", v, r, tenant, 1<<30)
		}
	}
	t := &s.tenants[tenant]
	any := false
	for r, v := range perByte {
		n := int64(math.Ceil(v * known))
		s.at(t.vector)[r] = n
		any = any || n > 0
	}
	t.bytes = 0
	if any {
		t.bytes = known
	}
	return nil
}

// Hold sets how much a tenant has of a held resource. Both must exist.
func (s *Sharer) Hold(tenant, resource int, amount int64) {
	h := &s.holds[tenant*s.held+resource-s.flows]
	amount = max(amount, 0)
	s.holding[resource-s.flows] += amount - *h
	*h = amount
}

// Measure adds to what a tenant uses of a flow in this epoch. It is the caller's
// that both exist.
func (s *Sharer) Measure(tenant, resource int, amount int64) {
	t := &s.tenants[tenant]
	if t.epoch != s.epoch {
		s.activate(tenant, t)
	}
	s.counts[int(t.count)*s.flows+resource] += amount
}

// Ingress counts a packet that arrives, and reports whether it is let in. It refuses packets of a tenant
// that does not exist.
func (s *Sharer) Ingress(now clock.Time, tenant, bytes int) bool {
	if uint(tenant) >= uint(len(s.tenants)) {
		return false
	}
	t := &s.tenants[tenant]
	if t.epoch != s.epoch {
		s.activate(tenant, t)
	}
	t.arrived += int64(bytes)
	if now >= s.half {
		t.late += int64(bytes)
	}
	if now > t.last {
		t.tokens = min(t.tokens+float64(now-t.last)*t.rate, t.burst)
		t.last = now
	}
	if t.tokens > 0 {
		t.tokens -= float64(bytes)
		t.admitted += int64(bytes)
		return true
	}
	return s.spare(now, t, float64(bytes))
}

// Refuse counts a packet that arrives and that the owner has no room for.
func (s *Sharer) Refuse(now clock.Time, tenant, bytes int) {
	t := &s.tenants[tenant]
	if t.epoch != s.epoch {
		s.activate(tenant, t)
	}
	t.arrived += int64(bytes)
	if now >= s.half {
		t.late += int64(bytes)
	}
}

// Part returns a tenant's share of a flow, as a part of its dominant share of flows: 1 if this flow is the
// dominant one, or if nothing is known of the tenant's use of it.
func (s *Sharer) Part(tenant, flow int) float64 {
	own, most := 0., 0.
	for r, v := range s.at(s.tenants[tenant].vector) {
		if v == 0 || s.perSecond[r] == 0 {
			continue
		}
		x := float64(v) / s.perSecond[r]
		most = max(most, x)
		if r == flow {
			own = x
		}
	}
	if own == 0 {
		return 1
	}
	return own / most
}

// Press reports whether a tenant should be told to send less, before its packets are refused: it asks for more
// than it gets, and has used half of its burst and half of the pool of a flow that it draws on.
func (s *Sharer) Press(now clock.Time, tenant int) bool {
	t := &s.tenants[tenant]
	if t.grant >= 1 || t.tokens >= t.burst/2 || int(s.bottleneck[tenant]) == s.queued {
		return false
	}
	if t.scarce >= 0 || t.bytes == 0 {
		return true
	}
	for r, v := range s.at(t.vector) {
		if p := &s.pools[r]; v > 0 && s.left(now, p) <= max(p.rate*s.window, p.slack)/2 {
			return true
		}
	}
	return false
}

// Low reports whether a tenant has used half of its burst, even if it asks for no more than it gets, as a tenant that
// obeys a pause does.
func (s *Sharer) Low(now clock.Time, tenant int) bool {
	t := &s.tenants[tenant]
	return min(t.tokens+max(0, float64(now-t.last))*t.rate, t.burst) < t.burst/2
}

func (s *Sharer) activate(i int, t *tenant) {
	t.epoch = s.epoch
	t.arrived, t.admitted, t.late = 0, 0, 0
	clear(s.at(t.count))
	s.active = append(s.active, int32(i))
}

// at returns a row of counts.
func (s *Sharer) at(row uint32) []int64 { return s.counts[int(row)*s.flows:][:s.flows] }

// spare lets in a packet over the limit if no pool that it draws on is empty.
func (s *Sharer) spare(now clock.Time, t *tenant, bytes float64) bool {
	if t.scarce >= 0 && s.left(now, &s.pools[t.scarce]) <= 0 {
		return false
	}
	t.scarce = -1
	vector, per := s.at(t.vector), t.bytes
	if per == 0 {
		vector, per = s.at(t.count), float64(t.admitted)
	}
	any := int64(0)
	for r, v := range vector {
		any |= v
		if v > 0 && r != s.queued && s.left(now, &s.pools[r]) <= 0 {
			t.scarce = int32(r)
			return false
		}
	}
	if any == 0 || per == 0 {
		for r := range s.pools {
			if s.perSecond[r] > 0 && r != s.queued && s.left(now, &s.pools[r]) <= 0 {
				return false
			}
		}
	} else {
		for r, v := range vector {
			s.pools[r].tokens -= float64(v) * bytes / per
		}
	}
	t.admitted += int64(bytes)
	return true
}

func (s *Sharer) left(now clock.Time, p *pool) float64 {
	if now > p.last {
		p.tokens = min(p.tokens+float64(now-p.last)*p.rate, max(p.rate*s.window, p.slack))
		p.last = now
	}
	return p.tokens
}

// Next returns the time when the epoch ends.
func (s *Sharer) Next() clock.Time { return s.start.Add(s.epochLen) }

// Epoch ends an epoch, however long it was, and sets the limits for the next one. If it returns an
// error, limits of active tenants stay as they are.
func (s *Sharer) Epoch(now clock.Time) error {
	if now <= s.start {
		return nil
	}
	length := float64(now - s.start)
	s.stretch = 1
	if now >= s.Next() { // not cut short
		s.stretch = length / float64(max(1, now-s.half))
	}
	for _, i := range s.before {
		if t := &s.tenants[i]; t.epoch != s.epoch {
			// A tenant that was asked to pause sends nothing until its bucket is half full again, so the bucket
			// fills as before.
			rate := t.least
			if s.Low(now, int(i)) {
				rate = max(rate, t.rate)
			}
			s.refill(now, t, rate)
			t.grant, t.share = 1, 0
			s.bottleneck[i] = -1
		}
	}
	for r := range s.flows {
		s.capacity[r] = s.perSecond[r] * length / 1e9
		s.asked[r] = 0
	}
	for h := range s.held {
		// What the others hold is not asked for here.
		s.capacity[s.flows+h] = max(s.perSecond[s.flows+h], float64(s.holding[h]))
		s.asked[s.flows+h] = 0
	}
	var err error
	if len(s.active) <= s.rows {
		err = s.divide()
	} else {
		err = s.divideRows()
	}
	if err == nil {
		for r := range s.flows {
			free := s.capacity[r] - s.asked[r]
			if free < s.capacity[r]*nothing {
				free = 0
			}
			p := &s.pools[r]
			s.left(now, p)
			s.setPool(p, min(free/length, p.most))
		}
		for _, i := range s.active {
			t, u := &s.tenants[i], &s.usage[i]
			rate := float64(t.grant) * t.asked / length
			if int(s.bottleneck[i]) == s.queued {
				rate = t.asked / length
			}
			s.refill(now, t, s.bounded(i, t, rate))
			if s.parts > 1 && t.asked > 0 {
				if t.recent == 0 {
					s.asking = append(s.asking, i)
				}
				t.recent += t.asked
			}
			u.Arrived += float64(t.arrived)
			u.Admitted += float64(t.admitted)
			switch {
			case t.rest:
				u.Share += float64(t.share) * length
			case t.grant > 0 && t.asked > 0:
				u.Share += float64(t.share) / float64(t.grant) * float64(t.admitted) / t.asked * length
			}
		}
	}
	s.before, s.active = s.active, s.before[:0]
	s.epoch++
	if s.epoch == 0 { // tenants seen an age ago are not seen now
		s.epoch = 1
		for i := range s.tenants {
			s.tenants[i].epoch = 0
		}
	}
	s.start, s.half = now, now.Add(s.epochLen/2)
	return err
}

// refill gives a tenant the tokens that it earned until now, and a new rate.
func (s *Sharer) refill(now clock.Time, t *tenant, rate float64) {
	if now > t.last {
		t.tokens += float64(now-t.last) * t.rate
		t.last = now
	}
	t.rate = rate
	t.burst = max(s.burst, rate*s.window)
	t.tokens = min(t.tokens, t.burst)
}

// settle finds the bytes and the vector that make up the demand of a tenant.
func (s *Sharer) settle(t *tenant) {
	t.asked = max(float64(t.arrived), float64(t.late)*s.stretch)
	counted := int64(0)
	for _, v := range s.at(t.count) {
		counted |= v
	}
	t.rest, t.scale = false, 0
	switch {
	case counted != 0 && t.admitted > 0:
		t.count, t.vector = t.vector, t.count
		t.bytes = float64(t.admitted)
		t.scale = t.asked / t.bytes
	case counted != 0 && t.arrived == 0:
		t.rest, t.scale = true, 1
	case t.bytes > 0:
		t.scale = t.asked / t.bytes
	}
}

// take writes a tenant's demand to a row.
func (s *Sharer) take(i int32, row []float64) {
	t := &s.tenants[i]
	from := t.vector
	if t.rest {
		from = t.count
	}
	counts := s.at(from)
	flows := row[:len(counts)]
	scale := t.scale
	for r, v := range counts {
		flows[r] = float64(v) * scale
	}
	for h := range s.held {
		row[s.flows+h] = float64(s.holds[int(i)*s.held+h])
	}
}

// divide gives each active tenant a row.
func (s *Sharer) divide() error {
	n, m := len(s.active), len(s.capacity)
	for k, i := range s.active {
		s.settle(&s.tenants[i])
		row := s.demand[k*m:][:m]
		s.take(i, row)
		s.weight[k] = s.tenants[i].weight
	}
	if err := s.solver.Solve(s.capacity, s.weight[:n], s.demand[:n*m], s.grant[:n]); err != nil {
		return err
	}
	s.sum(n)
	for k, i := range s.active {
		t := &s.tenants[i]
		t.grant, t.share = float32(s.grant[k]), float32(s.solver.Share(k))
		s.bottleneck[i] = int32(s.solver.Bottleneck(k))
	}
	return nil
}

// sum adds up what the first n rows got of each resource.
func (s *Sharer) sum(n int) {
	m := len(s.capacity)
	for k, g := range s.grant[:n] {
		row := s.demand[k*m:][:m]
		asked := s.asked[:len(row)]
		if g == 1 {
			for r, d := range row {
				asked[r] += d
			}
			continue
		}
		for r, d := range row {
			asked[r] += g * d
		}
	}
}

// divideRows lets active tenants share rows.
func (s *Sharer) divideRows() error {
	m := len(s.capacity)
	total, top := 0.0, float32(0)
	for _, i := range s.active {
		t := &s.tenants[i]
		s.settle(t)
		s.take(i, s.row)
		share := 0.0
		for r, d := range s.row {
			if d > 0 {
				share = max(share, d/s.capacity[r]) // +Inf when there is nothing
			}
		}
		t.share = float32(share)
		t.level = float32(share / t.weight)
		if !math.IsInf(share, 1) {
			total += t.weight
			top = max(top, t.level)
		}
	}
	low := float32(1 / total)
	span := uint64(math.Float32bits(max(top, low))-math.Float32bits(low)) + 1
	place := func(t *tenant) int {
		if t.level <= low {
			return 0
		}
		return 1 + int(uint64(math.Float32bits(t.level)-math.Float32bits(low))*uint64(s.rows-1)/span)
	}
	clear(s.demand)
	clear(s.heavy)
	clear(s.shares)
	for _, i := range s.active {
		t := &s.tenants[i]
		if math.IsInf(float64(t.share), 1) {
			continue
		}
		k := place(t)
		s.take(i, s.row)
		sum := s.demand[k*m:][:m]
		for r, d := range s.row {
			sum[r] += d
		}
		s.heavy[k] += t.weight
		s.shares[k] += float64(t.share)
	}
	heaviest := 0.0
	for k := range s.rows {
		share := 0.0
		for r, d := range s.demand[k*m:][:m] {
			if d > 0 {
				share = max(share, d/s.capacity[r])
			}
		}
		w := s.heavy[k]
		if s.shares[k] > 0 {
			w *= share / s.shares[k]
		}
		s.weight[k] = w
		heaviest = max(heaviest, w)
	}
	heaviest = cmp.Or(heaviest, 1)
	for k := range s.rows {
		s.weight[k] = max(s.weight[k], heaviest/maxRatio)
	}
	if err := s.solver.Solve(s.capacity, s.weight, s.demand, s.grant); err != nil {
		return err
	}
	s.sum(s.rows)
	for _, i := range s.active {
		t := &s.tenants[i]
		if math.IsInf(float64(t.share), 1) {
			t.grant, t.share, s.bottleneck[i] = 0, 0, s.missing(i)
			continue
		}
		k := place(t)
		t.grant = float32(s.grant[k])
		t.share *= t.grant
		s.bottleneck[i] = int32(s.solver.Bottleneck(k))
	}
	return nil
}

// missing returns a resource of capacity 0 that a tenant needs, or -1.
func (s *Sharer) missing(i int32) int32 {
	s.take(i, s.row)
	for r, d := range s.row {
		if d > 0 && s.capacity[r] == 0 {
			return int32(r)
		}
	}
	return -1
}

// Limit returns what a tenant may send, in bytes a second, without what it takes from pools.
func (s *Sharer) Limit(tenant int) float64 {
	t := &s.tenants[tenant]
	if int(s.bottleneck[tenant]) == s.queued {
		return t.rate * float64(t.grant) * 1e9
	}
	return t.rate * 1e9
}

// Weight returns a tenant's weight.
func (s *Sharer) Weight(tenant int) float64 { return s.tenants[tenant].weight }

// Grant returns the fraction of its demand that a tenant got in the last division; 1 if it had no demand.
func (s *Sharer) Grant(tenant int) float64 { return float64(s.tenants[tenant].grant) }

// Usage returns what a tenant has had from New to the end of the last epoch. The difference of two
// results gives the mean over the time between them.
func (s *Sharer) Usage(tenant int) Usage { return s.usage[tenant] }

// Flow returns the greatest share of a flow that a tenant got: its dominant share without held resources. It is valid
// for the epoch that has just ended, until the next packet comes.
func (s *Sharer) Flow(tenant int) float64 {
	t := &s.tenants[tenant]
	if t.share == 0 {
		return 0
	}
	s.take(int32(tenant), s.row)
	share := 0.0
	for r, d := range s.row[:s.flows] {
		if d > 0 && s.capacity[r] > 0 {
			share = max(share, d/s.capacity[r])
		}
	}
	return share * float64(t.grant)
}

// Bottleneck returns the full resource that keeps a tenant from getting more, or -1.
func (s *Sharer) Bottleneck(tenant int) int { return int(s.bottleneck[tenant]) }

// Free returns how much of a flow no tenant was granted, in its unit a second.
func (s *Sharer) Free(resource int) float64 { return s.pools[resource].rate * 1e9 }
