package admin

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/table"
	"github.com/quillon/quillon/nf/track"
)

// Version of the protocol. A server refuses requests of another.
const Version = 1

// maxRequest bounds a request's line: the end of the line counts.
const maxRequest = 1 << 20

const tooLong = "the request is longer than 1048576 bytes"

// Operations.
const (
	opGraph      = "graph"
	opCounters   = "counters"
	opRuntime    = "runtime"
	opFlows      = "flows"
	opPorts      = "ports"
	opTraceAdd   = "trace-add"
	opTraceShow  = "trace-show"
	opTraceClear = "trace-clear"
	opTap        = "tap"
	opPunts      = "punts"
	opSet        = "set"
	opApply      = "apply"
	opReport     = "report"
	opTables     = "tables"
	opTable      = "table"
	opTableWrite = "table-write"
	opStop       = "stop"
	opProcess    = "process"
	opTrack      = "connections"
)

type request struct {
	V      int        `json:"v"`
	Op     string     `json:"op"`
	App    string     `json:"app,omitempty"`
	Port   string     `json:"port,omitempty"`
	At     string     `json:"at,omitempty"`
	N      int        `json:"n,omitempty"`
	Reason string     `json:"reason,omitempty"`
	Args   graph.Args `json:"args,omitempty"`
	Spec   string     `json:"spec,omitempty"` // YAML
	Dir    string     `json:"dir,omitempty"`  // of the spec's file
	DryRun bool       `json:"dry_run,omitempty"`
	Table  string     `json:"table,omitempty"`
	Change string     `json:"change,omitempty"` // insert, modify, delete or default
	Entry  table.Text `json:"entry,omitzero"`
	// Filter is of the connections that are asked for.
	Filter *track.Filter `json:"filter,omitempty"`
}

type response struct {
	V       int             `json:"v"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   string          `json:"error,omitempty"`
	Excerpt string          `json:"excerpt,omitempty"`
}

// Error is a refusal by the instance. Excerpt, when there is one, shows the
// place in the spec that was sent.
type Error struct {
	Msg     string
	Excerpt string
}

func (e *Error) Error() string { return e.Msg }

// Graph is what runs.
type Graph struct {
	Name    string      `json:"name"`
	Workers int         `json:"workers"`
	Spec    *graph.Spec `json:"spec"`
	Dot     string      `json:"dot"`
	Notes   []string    `json:"notes,omitempty"`
}

// Ports are the totals of the ports, and what was said about them when they
// were opened.
type Ports struct {
	Ports []graph.PortInfo `json:"ports"`
	Info  json.RawMessage  `json:"info,omitempty"`
}

// Plan is what an apply or set does, or would do.
type Plan struct {
	Actions []graph.Action `json:"actions"`
	Text    string         `json:"text"`
}

// Table is a table of an app.
type Table struct {
	App  string `json:"app"`
	Kind string `json:"kind"`
	table.Decl
}

// rows are some entries of a table, and in the first answer its default action.
// More: another answer follows.
type rows struct {
	Default *table.Text  `json:"default,omitempty"`
	Entries []table.Text `json:"entries"`
	More    bool         `json:"more,omitempty"`
}

// Captured is a frame of a stream, and how many the buffer had no room for
// until then.
type Captured struct {
	graph.Frame
	Dropped uint64 `json:"dropped"`
}

// Connection is one that an app remembers, and after how many seconds without a packet it forgets it.
type Connection struct {
	track.Connection
	Left float64 `json:"left_s"`
}

// connections are some. More: another answer follows.
type connections struct {
	Connections []Connection `json:"connections"`
	More        bool         `json:"more,omitempty"`
}

// Path is where the socket of the instance of that name is by default:
// /run/quillon/NAME.sock for root, else $XDG_RUNTIME_DIR/quillon/NAME.sock,
// else quillon-UID/NAME.sock below the directory for temporary files, which
// users share.
func Path(name string) string {
	dir := "/run/quillon"
	if uid := os.Geteuid(); uid != 0 {
		if dir = os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
			dir = filepath.Join(dir, "quillon")
		} else {
			dir = filepath.Join(os.TempDir(), fmt.Sprintf("quillon-%d", uid))
		}
	}
	return filepath.Join(dir, name+".sock")
}
