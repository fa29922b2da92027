package snic

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/quillon/quillon/internal/resident"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/memory"
	"github.com/quillon/quillon/snic/dag"
	"github.com/quillon/quillon/snic/vmem"
)

// severalOwners is the tenant of the memory of tasks that several tenants use, and of
// those that none does.
const severalOwners = 0

// scrubSlice is how many bytes of what others left are cleared in one go, on the worker: what takes longer
// than some microseconds would be felt.
const scrubSlice = 32 << 10

// scrubEvery is how often, while nobody waits for it and frames are there; scrubIdle while none are.
const (
	scrubEvery = 200 * time.Microsecond
	scrubIdle  = 20 * time.Microsecond
)

// onboard is the memory of a board, and who has it.
type onboard struct {
	*vmem.Memory
	cat    *catalog
	ram    *ram
	page   int64                  // its bytes
	owners [1 + maxNumbers]string // tenants, by their number in Memory; "": none has it
	of     [1 + maxNumbers]int    // their numbers on the board; -1: not yet known
	others [1 + maxNumbers]other
	top    int   // no tenant has a number from here on
	look   bool  // Next may return an event
	swap   *swap // nil: there are no other boards

	weighed, sampled, scrubbed clock.Time // last; 0: not yet
}

// other is what a tenant has of the board, memory aside.
type other struct {
	sum  float64 // its greatest share of a flow, times ns, since the last sample
	mean float64 // over the last monitor period, as the load of tasks is (snic/region)
}

// machineFits says that so much memory, in each of so many workers, is more than the machine has; nil: it is not.
func machineFits(what string, bytes int64, workers int) error {
	has := resident.May()
	if has == 0 || bytes <= has/int64(max(workers, 1)) {
		return nil
	}
	each := ""
	if workers > 1 {
		each = fmt.Sprintf(" for each of %d workers", workers)
	}
	return fmt.Errorf("%s%s: this machine has %d bytes, or lets the program have no more: want less (in a pool, memory of other boards is added to it)", what, each, has)
}

// newOnboard is the memory of a board; nil when it has none.
func newOnboard(s *settings) (*onboard, error) {
	if s.memory == 0 {
		return nil, nil
	}
	if err := machineFits(fmt.Sprintf("memory=%d", s.memory), s.memory, s.workers); err != nil {
		return nil, err
	}
	m := &onboard{page: s.page}
	var remote vmem.Remote
	if s.poolPort >= 0 {
		m.swap = &swap{}
		remote = m.swap
	}
	var err error
	if m.ram, err = newRAM(s.memory); err != nil {
		return nil, fmt.Errorf("memory=%d: the machine does not give the program so much (see ulimit -v, and vm.overcommit_memory); want less: %w", s.memory, err)
	}
	m.Memory, err = vmem.New(vmem.Config{PageBytes: int(s.page), Pages: int(s.memory / s.page), Spaces: maxNumbers, Tenants: 1 + maxNumbers,
		Promise: int(s.promise / s.page), Remote: remote, Data: m.ram.bytes, Clear: scrubSlice})
	if err != nil {
		return nil, fmt.Errorf("memory=%d, page=%d: %w", s.memory, s.page, err)
	}
	return m, nil
}

// pages is how many pages so many bytes take.
func (m *onboard) pages(bytes int64) int { return int((bytes + m.page - 1) / m.page) }

// owner is the number of a tenant in Memory; there is one for each task.
func (m *onboard) owner(tenant string) int {
	if tenant == "" {
		return severalOwners
	}
	at := -1
	for i := 1; i < len(m.owners); i++ {
		if m.owners[i] == tenant {
			return i
		}
		if at < 0 && m.owners[i] == "" {
			at = i
		}
	}
	m.owners[at], m.of[at] = tenant, -1
	return at
}

// space is what a task has of the board's memory. It implements memory.Space.
type space struct {
	m    *onboard
	cat  *catalog
	id   int // number of the task; -1: it is over
	size int64
}

// Size implements memory.Space.
func (s *space) Size() int64 { return s.size }

// PageBytes implements memory.Space.
func (s *space) PageBytes() int { return int(s.m.page) }

// Reserve implements memory.Space.
func (s *space) Reserve(va uint64, length int64, p memory.Perm) error {
	if length <= 0 || length > s.size {
		return fmt.Errorf("range of %d bytes: memory: of the task is %d", length, s.size)
	}
	return s.m.Reserve(s.id, va, s.m.pages(length)*int(s.m.page), vmem.Perm(p))
}

// Read implements memory.Space.
func (s *space) Read(va uint64, p []byte) (int, memory.Outcome) {
	n, st := s.m.Read(s.id, va, p)
	if st != vmem.OK {
		s.miss(st)
	}
	return n, memory.Outcome(st)
}

// Write implements memory.Space.
func (s *space) Write(va uint64, p []byte) (int, memory.Outcome) {
	n, st := s.m.Write(s.id, va, p)
	if st != vmem.OK {
		s.miss(st)
	}
	return n, memory.Outcome(st)
}

// miss notes an access that failed or must wait: the next Tick deals with it. After a fault the task gets no more frames.
func (s *space) miss(st vmem.Status) {
	s.m.look = true
	if st == vmem.Faulted && s.id >= 0 {
		s.cat.tasks[s.id].halted = true
	}
}

// absent reports whether frames go on without a task.
func (t *task) absent() bool { return t.in == nil || t.halted && t.Pass }

// anew reports whether a task must start again, though it is the same function with the
// same arguments. If only its memory grows, it goes on.
func (m *onboard) anew(t *task, x *dag.Task) bool {
	grows := t.space != nil && !t.halted && x.Memory >= t.Memory
	return t.Restart != x.Restart || m != nil && t.Memory != x.Memory && !grows
}

// stays reports whether a task of a deployment is the one that runs already.
func (m *onboard) stays(t *task, x *dag.Task) bool {
	return t.Kind == x.Kind && maps.Equal(t.Args, x.Args) && !m.anew(t, x)
}

// fits returns an error if there is no room for the memory that the tasks of a deployment declare.
func (m *onboard) fits(d *dag.Deployment) error {
	if m == nil {
		return nil
	}
	room, want := m.Room(), 0
	for n := range m.cat.tasks {
		if t := &m.cat.tasks[n]; t.space != nil && !slices.ContainsFunc(d.Tasks, func(x dag.Task) bool { return x.Name == t.Name && m.stays(t, &x) }) {
			room += m.Frees(n)
		}
	}
	for i := range d.Tasks {
		x := &d.Tasks[i]
		at := slices.IndexFunc(m.cat.tasks, func(t task) bool { return t.in != nil && t.Name == x.Name && m.stays(&t, x) })
		switch {
		case at >= 0 && m.cat.tasks[at].space != nil: // it may still reserve the rest, or start anew
			want += max(m.pages(x.Memory)-m.Counters(at).Reserved, 0)
		case at < 0 && m.cat.library.usesMemory(x.Kind, x.Args):
			want += m.pages(x.Memory)
		}
	}
	if want > room {
		return fmt.Errorf("deployment: its tasks want %d pages of memory more (memory: of a task), and there is room for %d, here or at boards of the pool: %w", want, room, vmem.ErrNoRoom)
	}
	return nil
}

// furnish gives a task that has just been made its memory, if it declares some and can use it.
func (m *onboard) furnish(n int, x *dag.Task) {
	if m == nil || x.Memory == 0 {
		return
	}
	t := &m.cat.tasks[n]
	u, ok := t.app.(memory.User)
	if !ok {
		return
	}
	pages := m.pages(x.Memory)
	s := &space{m: m, cat: m.cat, id: n, size: int64(pages) * m.page}
	err := m.Open(n, severalOwners, pages)
	if err == nil {
		t.space = s
		t.try(func() { err = u.UseMemory(s) })
	}
	if err != nil && !t.halted {
		t.halted, t.fault = true, err.Error()
		m.look = true
	}
}

// grow gives a task that goes on as much memory as it declares now.
func (m *onboard) grow(n int, x *dag.Task) {
	if m == nil {
		return
	}
	t := &m.cat.tasks[n]
	if t.space == nil || x.Memory <= t.Memory {
		return
	}
	pages := m.pages(x.Memory)
	if m.Grow(n, pages) != nil {
		return // it stops, or has all the addresses that there are
	}
	t.space.size = int64(pages) * m.page
	if g, ok := t.app.(memory.Grower); ok {
		t.try(g.GrowMemory)
	}
}

// vacate takes a task's memory from it.
func (t *task) vacate() {
	if t.space != nil {
		_ = t.space.m.Close(t.space.id) // it is open
		t.space.id = -1
		t.space = nil
	}
}

// deployMemory says whose the memory of tasks is: that of the only tenant with DAGs that they are in.
func (m *onboard) deployMemory() {
	if m == nil {
		return
	}
	d := m.cat.deployment
	var used [1 + maxNumbers]bool
	owners := make([]string, len(d.Tasks))
	seen := make([]bool, len(d.Tasks))
	for i := range d.DAGs {
		name := d.Tenants[d.DAGs[i].Tenant].Name
		for _, t := range d.DAGs[i].Tasks {
			if seen[t] && owners[t] != name {
				name = ""
			}
			seen[t], owners[t] = true, name
			name = d.Tenants[d.DAGs[i].Tenant].Name
		}
	}
	for i, n := range m.cat.taskOf {
		if m.cat.tasks[n].space == nil {
			owners[i] = ""
		}
	}
	for o := 1; o < len(m.owners); o++ {
		used[o] = m.owners[o] != "" && slices.Contains(owners, m.owners[o])
		if !used[o] {
			m.owners[o] = ""
			m.unweigh(o)
		}
	}
	for i, n := range m.cat.taskOf {
		if m.cat.tasks[n].space != nil {
			_ = m.Move(n, m.owner(owners[i])) // it is open
		}
	}
	number := m.cat.tenantNumbers()
	m.top = 0
	for _, x := range d.Tenants {
		if o := slices.Index(m.owners[1:], x.Name) + 1; o > 0 {
			m.of[o] = number[x.Name]
			m.top = max(m.top, o+1)
			_ = m.SetWeight(o, x.Weight) // a deployment's are within its bounds
		}
	}
}

// holdMemory tells the division of the board how much memory each tenant has.
func (sh *shares) holdMemory() {
	m := sh.memory
	if m == nil {
		return
	}
	for o := 1; o < m.top; o++ {
		if m.owners[o] != "" && m.of[o] >= 0 {
			sh.fair.Hold(m.of[o], int(sh.scarce.memory), int64(m.Held(o)))
		}
	}
}

// weighMemory tells the memory what else tenants have of the board. It is called after each epoch, and uses means over a
// monitor period: a tenant that sends in bursts has everything in one epoch and nothing in the next.
func (sh *shares) weighMemory(now clock.Time) {
	m := sh.memory
	if m == nil {
		return
	}
	if m.weighed == 0 {
		m.weighed, m.sampled = now, now
	}
	last := float64(now.Sub(m.weighed))
	m.weighed = now
	all := now.Sub(m.sampled)
	sample := all >= sh.monitor/samples
	for o := 1; o < m.top; o++ {
		if m.owners[o] == "" || m.of[o] < 0 {
			continue
		}
		x := &m.others[o]
		x.sum += sh.fair.Flow(m.of[o]) * last
		if sample {
			x.mean += (x.sum/float64(all) - x.mean) * min(1, float64(all)/float64(sh.monitor))
			x.sum = 0
			_ = m.SetOther(o, min(max(x.mean, 0), 1))
		}
	}
	if sample {
		m.sampled = now
	}
}

// unweigh forgets what a tenant has of the board.
func (m *onboard) unweigh(o int) {
	m.others[o] = other{}
	_ = m.SetOther(o, 0)
}

// shares says whether tenants have shares of the memory.
func (m *onboard) shares(on bool) {
	m.SetFair(on)
	if on {
		return
	}
	for o := 1; o < len(m.others); o++ {
		m.unweigh(o)
	}
	m.weighed = 0
}

// scrub clears some of what others left, and returns when there is more to do.
func (m *onboard) scrub(now clock.Time, idle bool) clock.Time {
	every := scrubEvery
	if idle {
		every = scrubIdle
	}
	some, urgent := m.Dirty()
	if some && (urgent || now >= m.scrubbed.Add(every)) {
		m.Scrub(scrubSlice)
		m.scrubbed = now
		m.look = m.look || urgent
		some, urgent = m.Dirty()
	}
	switch {
	case urgent:
		return now
	case some:
		return m.scrubbed.Add(every)
	}
	return clock.Never
}

// heed goes on with tasks for which a page has come, and stops those that have faulted.
func (b *board) heed(c *graph.Ctx) {
	m := b.memory
	if m == nil || !m.look {
		return
	}
	m.look = false
	// A task gets one event, or two if the page that came for it went to another; further events wait for the next call.
	for range 4 * maxNumbers {
		id, ok := m.Next()
		if !ok {
			break
		}
		t := &b.cat.tasks[id]
		if t.space == nil {
			continue
		}
		if m.Err(id) != nil {
			t.halted = true
			continue
		}
		t.next = min(t.next, t.in.Tick(c, t.app))
		t.fell()
		b.runner.sweep(c, t, t.in)
	}
	for n := range b.cat.tasks {
		if t := &b.cat.tasks[n]; t.halted && t.app != nil {
			b.runner.halt(c, n)
		}
	}
}

// try runs code of a task, and reports false if it panics: then the task is halted.
func (t *task) try(code func()) bool {
	ok := t.in.Try(code)
	if !ok {
		t.fell()
	}
	return ok
}

// fell halts a task if its code has panicked. Its frames have been dropped.
func (t *task) fell() {
	if t.in == nil || !t.in.Over() || t.halted && t.app == nil {
		return
	}
	f := t.in.Fault()
	t.halted, t.app, t.next = true, nil, clock.Never
	t.fault = fmt.Sprintf("it panicked: %v (%s); frames that it held: %d", f.Value, f.At, f.Frames)
	t.vacate()
}

// TaskMemory says how much of the board's memory a task has.
type TaskMemory struct {
	Declared int64  `json:"declared_bytes"`
	Reserved int64  `json:"reserved_bytes"`
	Resident int64  `json:"resident_bytes"`
	Swapped  int64  `json:"swapped_bytes"` // at other boards, or on the way back
	Touched  uint64 `json:"touched_pages"` // since it began, as all that follows
	Out      uint64 `json:"out_pages"`
	In       uint64 `json:"in_pages"`
	Refused  uint64 `json:"refused"`
}

// TenantMemory says how much of the board's memory a tenant has, and has a right to (0 with fair=off).
type TenantMemory struct {
	Held  int64 `json:"held_bytes"` // with what it waits for
	Share int64 `json:"share_bytes"`
}

// BoardMemory describes the memory of a board.
type BoardMemory struct {
	Bytes int64 `json:"bytes"`
	Page  int64 `json:"page_bytes"`
	Free  int64 `json:"free_bytes"`
	Lent  int64 `json:"lent_bytes"` // to other boards
	Room  int64 `json:"room_bytes"` // that can be reserved, here or elsewhere
	// Used is what has been in use since the board began: the machine's memory that it takes is no more. Process
	// is what the whole process has of that, resident; 0: not known.
	Used    int64 `json:"used_bytes"`
	Process int64 `json:"process_bytes"`
	// Shared is what tasks of several tenants hold.
	Shared TenantMemory `json:"shared"`
}

func (m *onboard) task(n int, declared int64) *TaskMemory {
	c := m.Counters(n)
	return &TaskMemory{declared, int64(c.Reserved) * m.page, int64(c.Resident) * m.page, int64(c.Swapped) * m.page, c.Touched, c.Out, c.In, c.Refused}
}

func (m *onboard) tenant(o int) *TenantMemory {
	return &TenantMemory{int64(m.Held(o)) * m.page, int64(m.Share(o) * float64(m.page))}
}

func (m *onboard) view(s *settings) *BoardMemory {
	return &BoardMemory{s.memory, m.page, int64(m.Idle()) * m.page, int64(m.Lending()) * m.page, int64(m.Room()) * m.page, int64(m.Used()) * m.page, processMemory(), *m.tenant(severalOwners)}
}
