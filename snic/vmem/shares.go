package vmem

import "github.com/quillon/quillon/snic/drf"

// shares holds how many frames tenants have, and divides the frames among them.
type shares struct {
	tenants  []tenant
	held     int // of all tenants
	unfair   bool
	solver   *drf.Solver
	active   []int32 // tenants in the division
	weight   []float64
	demand   []float64
	grant    []float64
	capacity [1]float64
}

type tenant struct {
	weight float64
	other  float64
	spaces int32 // the first; -1: none
	held   int   // pages that it has, or waits for
	has    int   // resident ones
	total  int   // pages that were touched, wherever they are
}

// waits reports whether a tenant has less than it asks for.
func (t *tenant) waits() bool { return t.held > t.has }

// hold adds pages to what a tenant has, or waits for.
func (sh *shares) hold(tenant int32, n int) {
	sh.tenants[tenant].held += n
	sh.held += n
}

// divide computes the tenants' shares of usable frames, and returns how many tenants ask for memory.
func (sh *shares) divide(usable int) int {
	n, greatest := 0, 0.0
	all := float64(max(usable, 1))
	for t := range sh.tenants {
		e := &sh.tenants[t]
		if e.held == 0 {
			continue
		}
		d := float64(e.held)
		sh.active[n], sh.demand[n], sh.weight[n] = int32(t), d, e.weight
		if own := float64(max(e.total, e.held)); e.other*all > own {
			sh.weight[n] *= own / (e.other * all)
		}
		greatest = max(greatest, sh.weight[n])
		n++
	}
	sh.capacity[0] = all
	for i := range n {
		sh.weight[i] = max(sh.weight[i], greatest/(maxWeight*maxWeight))
	}
	if sh.solver.Solve(sh.capacity[:], sh.weight[:n], sh.demand[:n], sh.grant[:n]) != nil {
		return 0 // weights, demands and capacity are within its bounds: never
	}
	return n
}

// right returns how many of the usable frames a tenant has a right to; 0 without shares.
func (sh *shares) right(tenant int32, usable int) float64 {
	if sh.unfair {
		return 0
	}
	n := sh.divide(usable)
	for i, t := range sh.active[:n] {
		if t == tenant {
			return sh.grant[i] * sh.demand[i]
		}
	}
	return 0
}

// most returns the tenant with resident pages that is furthest above its share, or -1 if none is above it.
// Among equals it prefers a tenant that itself waits.
func (sh *shares) most(usable int) int32 {
	const near = 1e-6
	n := sh.divide(usable)
	most, who := near, int32(-1)
	for i, t := range sh.active[:n] {
		e := &sh.tenants[t]
		if e.has == 0 {
			continue
		}
		excess := sh.demand[i] * (1 - sh.grant[i])
		if excess > most+near || excess > most-near && who >= 0 && e.waits() && !sh.tenants[who].waits() {
			most, who = excess, t
		}
	}
	return who
}
