package snic

import (
	"fmt"
	"slices"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/snic/fair"
)

// shares divides the board among tenants: this worker's part of it, and together with other workers the whole (whole.go).
type shares struct {
	*settings
	fixed      *settings
	cat        *catalog
	memory     *onboard     // nil: there is none
	fair       *fair.Sharer // nil: with fair=off
	scarce     scarce
	spent      spent
	whole      whole
	obtained   []obtained // by number of the tenant
	obtainedAt clock.Time
}

// scarce numbers the resources that tenants share: what comes in by each port, what goes out by
// it, the packet store, the tasks that have a throughput, a worker's time, and memory. A resource that is not used, or
// has no limit, has no number, because the division of an epoch looks at all numbers.
type scarce struct {
	used    uint32       // ports: frames have come in by them, or the ports opposite
	ingress [ports]int16 // -1: none, here and below
	egress  [ports]int16
	tasks   [maxNumbers]int16
	// processor is a worker's time, in ns of tasks.
	processor int16
	memory    int16 // held, not used up, and so the last
	names     []string
}

// flows is how many of the resources are flows: used up by what comes.
func (s *scarce) flows() int {
	if s.memory >= 0 {
		return int(s.memory)
	}
	return len(s.names)
}

const resStore = 0

// stays is the number of packets, about, of which service.stay is the mean.
const stays = 64

// number numbers the resources that are shared now, in all workers alike. order is the order of the deployment's tasks.
func (s *scarce) number(tasks []task, order []int, processor, memory bool) {
	s.names = append(s.names[:0], "packet store")
	add := func(at *int16, is bool, name string) {
		*at = -1
		if is {
			*at = int16(len(s.names))
			s.names = append(s.names, name)
		}
	}
	for p := range ports {
		used := s.used&(1<<p) != 0
		add(&s.ingress[p], used, fmt.Sprintf("ingress p%d", p))
		add(&s.egress[p], used, fmt.Sprintf("egress p%d", p))
	}
	for n := range s.tasks {
		s.tasks[n] = -1
	}
	for _, n := range order {
		add(&s.tasks[n], tasks[n].in != nil && tasks[n].Throughput > 0, tasks[n].Name)
	}
	add(&s.processor, processor, "processor")
	add(&s.memory, memory, "memory")
}

// use notes that frames come in by a port: it and the one opposite are shared from
// now on.
func (sh *shares) use(now clock.Time, in int) {
	sh.scarce.used |= 1<<in | 1<<(in^1)
	if sh.cat.house != nil {
		sh.scarce.used |= sh.cat.house.use(sh.scarce.used)
	}
	if err := sh.deployShares(now); err != nil {
		panic(fmt.Sprintf("snic: shares of a deployment that was checked: %v", err))
	}
}

// deployShares sets up the division of the board among tenants. Measurements of the
// present epoch are lost: an epoch is short.
func (sh *shares) deployShares(now clock.Time) error {
	if sh.memory != nil {
		sh.memory.shares(sh.shares)
	}
	if !sh.shares {
		sh.fair = nil
		return nil
	}
	s := &sh.scarce
	s.number(sh.cat.tasks, sh.cat.taskOf, sh.spent.clock != nil, sh.memory != nil)
	held := 0
	if sh.memory != nil {
		held = 1
	}
	var err error
	for n := range sh.obtained {
		sh.obtained[n].until = fair.Usage{}
	}
	sh.obtainedAt = now
	sh.fair, err = fair.New(now, fair.Config{Tenants: max(len(sh.cat.tenants), 1), Resources: len(s.names), Held: held, Epoch: sh.epoch, Burst: sh.partBurst(), Slack: sh.slack, Parts: sh.workers})
	if err != nil {
		return err
	}
	if sh.cat.house != nil {
		if err := sh.deployWhole(now); err != nil {
			return err
		}
	}
	set := func(r int16, capacity float64) {
		if r >= 0 && err == nil {
			err = sh.fair.SetCapacity(int(r), capacity)
		}
	}
	set(resStore, float64(sh.store)*1e9) // bytes for nanoseconds, a second
	set(s.processor, 1e9)
	if s.processor >= 0 && err == nil {
		err = sh.fair.Queue(int(s.processor))
	}
	sh.spent.since = now
	if sh.memory != nil {
		set(s.memory, float64(sh.fixed.memory/sh.fixed.page))
	}
	for p := range ports {
		set(s.ingress[p], float64(sh.portRate)/8)
		set(s.egress[p], float64(sh.portRate)/8)
	}
	number := sh.cat.tenantNumbers()
	for _, t := range sh.deployment.Tenants {
		if n, ok := number[t.Name]; ok && err == nil {
			err = sh.fair.SetWeight(n, t.Weight)
			if sh.whole.sharer != nil && err == nil {
				err = sh.whole.sharer.SetWeight(n, t.Weight)
			}
		}
	}
	if err != nil {
		return err
	}
	sh.capacities()
	sh.expect()
	return nil
}

// expect tells the division what a byte of a tenant will use, as far as that is known before
// bytes come: for tenants with one DAG.
func (sh *shares) expect() {
	s := &sh.scarce
	perByte := make([]float64, len(s.names))
	if s.memory >= 0 {
		perByte = perByte[:s.memory] // no flow
	}
	only := make([]int, len(sh.cat.tenants)) // the tenant's DAG + 1; -1: several
	for i := range sh.cat.services {
		if d := &sh.cat.services[i]; d.UID != 0 {
			if only[d.tenant] == 0 {
				only[d.tenant] = i + 1
			} else {
				only[d.tenant] = -1
			}
		}
	}
	for n, i := range only {
		if i <= 0 {
			continue
		}
		clear(perByte)
		some := false
		for _, t := range sh.cat.services[i-1].tasks {
			if r := s.tasks[t]; r >= 0 {
				perByte[r], some = 1, true
			}
		}
		if some {
			_ = sh.fair.Expect(n, perByte) // finite, and of resources that there are
		}
	}
}

// capacities tells the division what the instances of each task can handle together.
func (sh *shares) capacities() {
	if sh.fair == nil {
		return
	}
	for n := range sh.cat.tasks {
		r := sh.scarce.tasks[n]
		if r < 0 {
			continue
		}
		instances := max(sh.cat.instances(n), int(sh.whole.instances[n]))
		_ = sh.fair.SetCapacity(int(r), float64(sh.cat.tasks[n].Throughput)/8*float64(instances)) // as above
	}
}

// instances is in how many regions of this worker a task runs.
func (cat *catalog) instances(task int) (n int) {
	for _, ch := range cat.placed {
		if ch >= 0 && slices.Contains(cat.chains[ch].tasks, task) {
			n++
		}
	}
	return n
}

// obtained is what a tenant got of the board over the last rateEvery. A single epoch says little about a tenant that
// sends in bursts.
type obtained struct {
	share float64    // dominant
	grant float64    // the part of what came that was let in
	until fair.Usage // when that was measured
}

// recall measures what tenants got since its last call.
func (sh *shares) recall(now clock.Time) {
	d := now.Sub(sh.obtainedAt)
	if sh.fair == nil || d < rateEvery {
		return
	}
	for n := range sh.obtained {
		x, u := &sh.obtained[n], sh.fair.Usage(n)
		x.share, x.grant = (u.Share-x.until.Share)/float64(d), 1
		if arrived := u.Arrived - x.until.Arrived; arrived > 0 {
			x.grant = (u.Admitted - x.until.Admitted) / arrived
		}
		x.until = u
	}
	sh.obtainedAt = now
}

// measure tells the division what a group uses, before the group is dispatched.
func (sh *shares) measure(d *service, in int, g *group) {
	s, bytes := &sh.scarce, int64(g.bytes)
	if in >= 0 {
		sh.fair.Measure(d.tenant, int(s.ingress[in]), bytes)
		sh.fair.Measure(d.tenant, int(s.egress[g.way.port(sh.fixed.poolPort)]), bytes)
	}
	// What leaves in an epoch came long before: over what comes in it, it would say nothing of what a byte uses.
	sh.fair.Measure(d.tenant, resStore, int64(float64(bytes)*d.stay))
	if d.where.to > 0 {
		return // tasks of a peer
	}
	if s.processor >= 0 && d.where.to == 0 {
		sh.fair.Measure(d.tenant, int(s.processor), int64(d.cost*float64(g.batch.Len())))
	}
	if in < 0 {
		return // where it came in
	}
	for _, t := range d.tasks {
		if r := s.tasks[t]; r >= 0 {
			sh.fair.Measure(d.tenant, int(r), bytes)
		}
	}
}
