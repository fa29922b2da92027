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

// Version is the version of the protocol. A server refuses requests of other versions.
const Version = 1

// maxRequest is the largest length of a request's line in bytes, with the end of the line.
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
	// Filter selects the connections that the request asks for.
	Filter *track.Filter `json:"filter,omitempty"`
}

type response struct {
	V       int             `json:"v"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   string          `json:"error,omitempty"`
	Excerpt string          `json:"excerpt,omitempty"`
}

// Error is the instance's refusal of a request. Excerpt, if it is not empty, shows the
// place of the mistake in the spec that was sent.
type Error struct {
	Msg     string
	Excerpt string
}

func (e *Error) Error() string { return e.Msg }

// Graph describes the running graph.
type Graph struct {
	Name    string      `json:"name"`
	Workers int         `json:"workers"`
	Spec    *graph.Spec `json:"spec"`
	Dot     string      `json:"dot"`
	Notes   []string    `json:"notes,omitempty"`
}

// Ports has the totals of the ports, and in Info what their kind reported when they
// were opened.
type Ports struct {
	Ports []graph.PortInfo `json:"ports"`
	Info  json.RawMessage  `json:"info,omitempty"`
}

// Plan lists the actions that Apply or Set did, or, for a dry run, would do.
type Plan struct {
	Actions []graph.Action `json:"actions"`
	Text    string         `json:"text"`
}

// Table is the declaration of a table of an app.
type Table struct {
	App  string `json:"app"`
	Kind string `json:"kind"`
	table.Decl
}

// rows has some entries of a table, and in the first answer the table's default action.
// More says that another answer follows.
type rows struct {
	Default *table.Text  `json:"default,omitempty"`
	Entries []table.Text `json:"entries"`
	More    bool         `json:"more,omitempty"`
}

// Captured is a frame of a stream. Dropped counts the frames of the stream so far for which
// the buffer had no room.
type Captured struct {
	graph.Frame
	Dropped uint64 `json:"dropped"`
}

// Connection is a connection that an app remembers. Left is the number of seconds without a packet after which
// the app forgets it.
type Connection struct {
	track.Connection
	Left float64 `json:"left_s"`
}

// connections has some of the connections. More says that another answer follows.
type connections struct {
	Connections []Connection `json:"connections"`
	More        bool         `json:"more,omitempty"`
}

// Path returns the default path of the socket of the instance called name:
// /run/quillon/NAME.sock for root, $XDG_RUNTIME_DIR/quillon/NAME.sock for other users if
// XDG_RUNTIME_DIR is set, and else quillon-UID/NAME.sock in the directory for temporary
// files, which users share.
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
