package dag

import (
	"fmt"
	"hash/fnv"
	"slices"
	"sync"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/effect"
	"github.com/quillon/quillon/snic/mat"
)

// TaskID is a task's index in Deployment.Tasks.
type TaskID int

// TenantID is a tenant's index in Deployment.Tenants.
type TenantID int

// DAGID is a DAG's index in Deployment.DAGs.
type DAGID int

// DefaultCredits is the number of packets that an instance of a task may have at a time, unless
// the task sets another. With 8 credits the published board keeps up with 100 Gb/s if packets
// have 256 bytes or more (figure 5.9).
const DefaultCredits = 8

// Task is a network task (NT).
type Task struct {
	Name string
	Kind string            // of the network function (nf) that it is
	Args map[string]string // of that function
	effect.Effects
	Memory     int64          // bytes of on-board memory that it may have
	Throughput int64          // bits a second; 0: not limited
	Latency    clock.Duration // from the first bit in to the first bit out
	Area       int            // of a region, in the units of Regions.Area
	Bitstream  int64          // bytes that it adds to a chain's bitstream; 0: not told
	Credits    int            // packets that an instance may have at a time
	Remote     bool           // it may run on another board
	Endpoint   bool           // its endpoint can do its work
	Pass       bool           // once a memory fault has stopped it, packets pass; else they are dropped
	Restart    int            // it starts anew, without what it knew, when that is another number
}

// Tenant is a user of the board, who owns DAGs and gets a share of the board's resources.
type Tenant struct {
	Name   string
	Weight float64 // of its share; 1 is usual
}

// DAG is a set of tasks, and an order, that a tenant wants packets to go through. A packet carries
// the UID of its DAG, or a rule assigns the packet to the DAG.
type DAG struct {
	UID    uint32 // not 0
	Tenant TenantID
	Tasks  []TaskID    // in the order in which the user names them
	Edges  [][2]TaskID // first one, then the other
}

// Regions describes the parts of a board that chains are loaded into.
type Regions struct {
	Count     int
	Area      int   // of each, in units of the user's choice
	Bitstream int64 // bytes of the bitstream that fills one
}

// Deployment is all that is deployed on a board, checked. Identifiers (TaskID, TenantID, DAGID) are valid
// for one Deployment: when a task is added or removed, those of other tasks change.
type Deployment struct {
	Tasks   []Task   // by name
	Tenants []Tenant // by name
	DAGs    []DAG    // as they were given
	Regions Regions
	Rules   []mat.Rule // as they were given; their DAG is a DAGID

	rank   []int // of each task: independent tasks come in this order
	chains *chains
}

// chains keeps the result of Chains, because several callers ask for it, among them a worker.
type chains struct {
	sync.Once
	all []Chain
	err error
}

// Number returns a hash of the tasks, tenants and DAGs, never 0. Boards whose deployments have the same number can
// help each other. Task.Restart, regions and rules do not count: boards of a pool may differ in these.
func (d *Deployment) Number() uint64 {
	h := fnv.New64a()
	tasks := slices.Clone(d.Tasks)
	for i := range tasks {
		tasks[i].Restart = 0
	}
	fmt.Fprintf(h, "%+v\n%+v\n%+v", tasks, d.Tenants, d.DAGs)
	return h.Sum64() | 1
}
