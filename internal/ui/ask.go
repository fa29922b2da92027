package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/internal/httpd"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port/pcap"
	"github.com/quillon/quillon/nf/table"
)

// answer returns a handler that answers with what find returns, as JSON, or with its error.
func answer[V any](s *Server, find func(r *http.Request) (V, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		out := http.NewResponseController(w)
		_ = out.SetReadDeadline(time.Time{})
		_ = out.SetWriteDeadline(s.after(traceWithin + httpd.Patience))
		v, err := find(r)
		if err != nil {
			refuse(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
}

// refuse answers with an error: Conflict if the instance refused the request or the page is busy, else Bad
// Gateway.
func refuse(w http.ResponseWriter, err error) {
	status := http.StatusBadGateway
	if errors.As(err, new(*admin.Error)) || errors.Is(err, errBusy) {
		status = http.StatusConflict
	}
	http.Error(w, err.Error(), status)
}

// dial opens a connection to the instance for one request.
func (s *Server) dial() (*admin.Client, error) {
	c, err := s.cfg.Dial()
	if err == nil {
		c.Within = httpd.Patience
	}
	return c, err
}

// tableName describes a table of an app.
type tableName struct {
	App   string    `json:"app"`
	Kind  string    `json:"kind"`
	Table string    `json:"table"`
	Help  string    `json:"help"`
	May   table.Ops `json:"may"` // the changes that are possible
}

func (s *Server) tables(*http.Request) ([]tableName, error) {
	c, err := s.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	all, err := c.Tables()
	list := []tableName{}
	for _, t := range all {
		list = append(list, tableName{t.App, t.Kind, t.Name, t.Help, t.May})
	}
	return list, err
}

// ours lets only this page ask for changes, and no other page that the browser shows: a page of another
// origin cannot send this content type unless the server agrees beforehand (CORS).
func ours(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if from := r.Header.Get("Origin"); r.Header.Get("Content-Type") != "application/json" || from != "" && from != "http://"+r.Host {
			http.Error(w, "changes are made by this page alone", http.StatusForbidden)
			return
		}
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxChange)) // here, because only reads have a time limit: see answer
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(text))
		h(w, r)
	}
}

// asked reads the change that the page asks for.
func asked(r *http.Request, into any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return &admin.Error{Msg: err.Error()}
	}
	return nil
}

// set changes arguments of an app.
func (s *Server) set(r *http.Request) (p admin.Plan, err error) {
	var q struct {
		App  string     `json:"app"`
		Args graph.Args `json:"args"`
	}
	if err := asked(r, &q); err != nil {
		return p, err
	}
	c, err := s.dial()
	if err != nil {
		return p, err
	}
	defer c.Close()
	return c.Set(q.App, q.Args)
}

// change changes a table, by an entry as it was read, or by one in the notation of quillon table.
func (s *Server) change(r *http.Request) (struct{}, error) {
	var done struct{}
	var q struct {
		App   string      `json:"app"`
		Table string      `json:"table"`
		What  string      `json:"what"` // as in admin.Client.Change
		Entry *table.Text `json:"entry"`
		Words string      `json:"words"`
	}
	if err := asked(r, &q); err != nil {
		return done, err
	}
	if q.Entry == nil {
		e, err := table.TextOf(strings.Fields(q.Words))
		if err != nil {
			return done, &admin.Error{Msg: err.Error()}
		}
		q.Entry = &e
	}
	c, err := s.dial()
	if err != nil {
		return done, err
	}
	defer c.Close()
	return done, c.Change(q.App, q.Table, q.What, *q.Entry)
}

// entries are the first maxEntries entries of a table.
type entries struct {
	Entries []table.Text `json:"entries"`
	More    bool         `json:"more"` // there are more
}

var errMany = errors.New("enough")

func (s *Server) table(r *http.Request) (e entries, err error) {
	c, err := s.dial()
	if err != nil {
		return e, err
	}
	defer c.Close()
	e.Entries = []table.Text{}
	err = c.Table(r.FormValue("app"), r.FormValue("table"), func(t table.Text) error {
		if len(e.Entries) == maxEntries {
			e.More = true
			c.Close() // the rest is not read
			return errMany
		}
		e.Entries = append(e.Entries, t)
		return nil
	})
	if e.More {
		err = nil
	}
	return e, err
}

// p4 returns the report of an app that runs a P4 program: its tables, and how full they are. Reports of other
// apps are not served, because a worker may spend long on all that such an app remembers.
func (s *Server) p4(r *http.Request) (json.RawMessage, error) {
	c, err := s.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	g, err := c.Graph()
	if err != nil {
		return nil, err
	}
	app := r.FormValue("app")
	if g.Spec.Apps[app].Kind != "p4" {
		return nil, &admin.Error{Msg: fmt.Sprintf("%q is no app that runs a P4 program", app)}
	}
	all, err := c.Report(app)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], nil
}

// errBusy is the answer when maxSlow traces and captures are under way.
var errBusy = fmt.Errorf("%d traces and captures are under way: try again when one has ended", maxSlow)

// begin takes one of the maxSlow places, which end gives back.
func (s *Server) begin() (end func(), err error) {
	select {
	case s.slow <- struct{}{}:
		return func() { <-s.slow }, nil
	default:
		return nil, errBusy
	}
}

// trace returns the trace of the next frame of a port, or of the next frame that is dropped or marked for a
// reason.
func (s *Server) trace(r *http.Request) (t graph.Traced, err error) {
	end, err := s.begin()
	if err != nil {
		return t, err
	}
	defer end()
	c, err := s.dial()
	if err != nil {
		return t, err
	}
	defer c.Close()
	before, err := c.Trace()
	if err != nil {
		return t, err
	}
	seen := map[uint32]bool{}
	for _, x := range before {
		seen[x.Packet] = true
	}
	if err := c.AddTrace(r.FormValue("port"), 1, r.FormValue("reason")); err != nil {
		return t, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), traceWithin)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return t, &admin.Error{Msg: fmt.Sprintf("no frame has come for %v", traceWithin)}
		case <-s.done:
			return t, &admin.Error{Msg: "the page is no longer served"}
		case <-tick.C:
		}
		all, err := c.Trace()
		if err != nil {
			return t, err
		}
		for _, x := range all {
			if !seen[x.Packet] {
				return x, nil
			}
		}
	}
}

// capture copies frames of a link into a file to download, for captureFor at most.
func (s *Server) capture(w http.ResponseWriter, r *http.Request) {
	end, err := s.begin()
	if err != nil {
		refuse(w, err)
		return
	}
	defer end()
	c, err := s.dial()
	if err != nil {
		refuse(w, err)
		return
	}
	defer c.Close()
	out := http.NewResponseController(w)
	if err := errors.Join(out.SetReadDeadline(time.Time{}), out.SetWriteDeadline(s.after(captureFor+httpd.Patience))); err != nil {
		refuse(w, err)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), captureFor)
	defer cancel()
	at := r.FormValue("at")
	var file *pcap.Writer
	begun := func() {
		w.Header().Set("Content-Type", "application/vnd.tcpdump.pcap")
		w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", strings.NewReplacer("/", "-", `"`, "", "\\", "").Replace(at)+".pcapng"))
		if file, err = pcap.NewWriter(&bounded{w, captureBytes}, pcap.NewHeader(pcap.NG)); err == nil {
			_, err = file.AddInterface(pcap.Interface{Name: at, Link: pcap.LinkEthernet, Resol: 9})
		}
	}
	streamed := c.Tap(ctx, at, begun, func(x admin.Captured) error {
		if err != nil {
			return err
		}
		p := pcap.Packet{Time: x.At, Data: x.Data, OrigLen: uint32(len(x.Data))}
		if x.Reason != "" {
			p.Comments = [][]byte{[]byte(x.Verdict.String() + ": " + x.Reason)}
		}
		return file.Write(&p)
	})
	if file == nil {
		if streamed == nil {
			streamed = errors.New("nothing was copied")
		}
		refuse(w, streamed)
		return
	}
	_ = file.Flush()
}

// bounded passes on at most left bytes; then Write fails.
type bounded struct {
	io.Writer
	left int
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, errMany
	}
	return b.Writer.Write(p)
}
