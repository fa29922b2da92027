package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/own"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/table"
)

// Client talks to a running instance. Any goroutine may use it; requests
// take turns. A call returns *Error if the instance refused the request; any
// other error means that the instance did not answer.
type Client struct {
	path string
	pid  int // of the instance, as this process sees it; 0: it does not
	mu   sync.Mutex
	conn net.Conn
	in   *json.Decoder
	late atomic.Bool // the instance did not answer in time
	// Within is the time that an instance has for an answer; 0 means one minute. Stop has a time of its own.
	Within time.Duration
	// Tell, if not nil, is called when a call has waited for two seconds, with a text that says
	// for what it waits and what the user can do.
	Tell func(string)
}

// answerWithin is the default of Client.Within. It is needed because an instance whose worker is stuck never answers.
const answerWithin = time.Minute

// tellAfter is the time after which a call that waits for the instance calls Client.Tell.
const tellAfter = 2 * time.Second

// Dial connects to the socket at path.
func Dial(path string) (*Client, error) {
	c, err := net.Dial("unix", path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("no instance answers on %s: start one with quillon run, or name its socket with --control", path)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s belongs to another user: run this as the one who runs the instance", path)
	case errors.Is(err, syscall.EINVAL):
		return nil, fmt.Errorf("%s is too long for a socket", path)
	case err != nil:
		return nil, err
	case !own.Believed(c):
		_ = c.Close()
		return nil, fmt.Errorf("%s is of another user, who would answer as he likes: run this as that user, or as root", path)
	}
	return &Client{path: path, pid: own.Peer(c), conn: c, in: json.NewDecoder(c)}, nil
}

// PID returns the ID of the instance's process in the PID namespace of this process, or 0 if it is not visible there.
func (c *Client) PID() int { return c.pid }

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

func (c *Client) call(req request, result any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	req.V = Version
	p, err := json.Marshal(req)
	if err != nil {
		return err
	}
	if len(p) >= maxRequest {
		return &Error{Msg: tooLong}
	}
	within := cmp.Or(c.Within, answerWithin)
	if req.Op == opStop {
		within = stopWithin
	}
	defer c.bound(within)()
	if _, err := c.conn.Write(append(p, '\n')); err != nil {
		// An instance that serves too many says so and hangs up, without waiting for a request.
		var refused *Error
		if refusal := c.answer(nil); errors.As(refusal, &refused) {
			return refusal
		}
		return c.lost(err)
	}
	return c.answer(result)
}

// bound closes the connection unless stop is called within this time. It calls Tell after tellAfter.
func (c *Client) bound(within time.Duration) (stop func()) {
	end := time.AfterFunc(within, func() {
		c.late.Store(true)
		c.conn.Close()
	})
	notice := time.AfterFunc(tellAfter, func() {
		if c.Tell != nil {
			c.Tell(c.awaited("answer"))
		}
	})
	return func() {
		end.Stop()
		notice.Stop()
	}
}

// awaited returns a text that says what the client waits for the instance to do, and, if its process is
// stopped, how the user can continue or end it.
func (c *Client) awaited(what string) string {
	pid := c.pid
	if pid == 0 {
		return fmt.Sprintf("waiting for the instance on %s to %s", c.path, what)
	}
	text := fmt.Sprintf("waiting for process %d to %s", pid, what)
	if own.Stopped(pid) {
		text += fmt.Sprintf(", which is stopped by a signal or a debugger: kill -CONT %d has it go on, kill -KILL %[1]d ends it", pid)
	}
	return text
}

func (c *Client) answer(result any) error {
	var r response
	if err := c.in.Decode(&r); err != nil {
		return c.lost(err)
	}
	if r.Error != "" {
		return &Error{r.Error, r.Excerpt}
	}
	if result == nil || r.Result == nil {
		return nil
	}
	return json.Unmarshal(r.Result, result)
}

func (c *Client) lost(err error) error {
	if c.late.Load() {
		return fmt.Errorf("the instance on %s has not answered in time: %s", c.path, c.wayOut())
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.ErrClosedPipe) {
		return fmt.Errorf("the instance on %s has gone: %w", c.path, io.ErrUnexpectedEOF)
	}
	return err
}

// wayOut returns a text that says how the user ends an instance that does not answer.
func (c *Client) wayOut() string {
	switch pid := c.pid; {
	case pid == 0:
		return "quillon stop ends it"
	case own.Stopped(pid):
		return fmt.Sprintf("process %d is stopped by a signal or a debugger: kill -CONT %[1]d has it go on, kill -KILL %[1]d ends it", pid)
	default:
		return fmt.Sprintf("quillon stop ends it, or else kill -KILL %d", pid)
	}
}

// Graph returns the running graph.
func (c *Client) Graph() (g Graph, err error) {
	err = c.call(request{Op: opGraph}, &g)
	return g, err
}

// Counters returns all counters of the instance.
func (c *Client) Counters() (v []graph.Count, err error) {
	err = c.call(request{Op: opCounters}, &v)
	return v, err
}

// Flows returns what the kernel does with flows that apps have decided.
func (c *Client) Flows() (r graph.AheadReport, err error) {
	err = c.call(request{Op: opFlows}, &r)
	return r, err
}

// Runtime returns how the apps and links run.
func (c *Client) Runtime() (r graph.Runtime, err error) {
	err = c.call(request{Op: opRuntime}, &r)
	return r, err
}

// Ports returns the ports' totals and what they were bound to.
func (c *Client) Ports() (p Ports, err error) {
	err = c.call(request{Op: opPorts}, &p)
	return p, err
}

// Process returns what the instance tells of its process, as JSON.
func (c *Client) Process() (p json.RawMessage, err error) {
	err = c.call(request{Op: opProcess}, &p)
	return p, err
}

// AddTrace calls graph.Instance.AddTrace in the instance.
func (c *Client) AddTrace(port string, n int, reason string) error {
	return c.call(request{Op: opTraceAdd, Port: port, N: n, Reason: reason}, nil)
}

// Trace returns what was traced so far.
func (c *Client) Trace() (t []graph.Traced, err error) {
	err = c.call(request{Op: opTraceShow}, &t)
	return t, err
}

// ClearTrace ends tracing and forgets what was traced.
func (c *Client) ClearTrace() error { return c.call(request{Op: opTraceClear}, nil) }

// Set changes these arguments of an app.
func (c *Client) Set(app string, args graph.Args) (p Plan, err error) {
	err = c.call(request{Op: opSet, App: app, Args: args}, &p)
	return p, err
}

// Apply changes the instance to what spec (YAML) says; with dryRun it only returns the plan. Files that the spec names
// without a directory are in dir; if dir is "", they are in the working directory of the instance's process.
func (c *Client) Apply(spec []byte, dir string, dryRun bool) (p Plan, err error) {
	err = c.call(request{Op: opApply, Spec: string(spec), Dir: dir, DryRun: dryRun}, &p)
	return p, err
}

// Report returns the state that an app shows, one JSON value per worker.
func (c *Client) Report(app string) (r []json.RawMessage, err error) {
	err = c.call(request{Op: opReport, App: app}, &r)
	return r, err
}

// Tables returns the declarations of all apps' tables.
func (c *Client) Tables() (t []Table, err error) {
	err = c.call(request{Op: opTables}, &t)
	return t, err
}

// Table calls f with the default action of an app's table, if the table has one, and
// then with each entry, until f returns an error, which Table returns.
func (c *Client) Table(app, name string, f func(table.Text) error) error {
	var r rows
	err := c.call(request{Op: opTable, App: app, Table: name}, &r)
	var stopped error
	for {
		if err != nil {
			return err
		}
		if r.Default != nil {
			r.Entries = append([]table.Text{*r.Default}, r.Entries...)
		}
		for _, e := range r.Entries {
			if stopped == nil {
				stopped = f(e)
			}
		}
		if !r.More {
			return stopped
		}
		r = rows{}
		err = c.next(&r)
	}
}

// next waits for the next answer to the same request.
func (c *Client) next(result any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.bound(answerWithin)()
	return c.answer(result)
}

// Change changes an app's table; what is "insert", "modify", "delete" or "default". A
// "default" without an action restores the default action that the app begins with.
func (c *Client) Change(app, name, what string, entry table.Text) error {
	return c.call(request{Op: opTableWrite, App: app, Table: name, Change: what, Entry: entry}, nil)
}

// stopWithin is the time for which Stop waits. It is longer than 20 s, because a process that is told to stop
// ends within 20 s, whatever it waits for.
const stopWithin = 25 * time.Second

// Stop ends the instance, and waits until its process has ended, so that the interfaces and files that
// it used are free. It does not wait for a process that is this one or is not visible.
func (c *Client) Stop() error {
	pid, end := c.process()
	if end != nil {
		defer end.Close()
	}
	if err := c.call(request{Op: opStop}, nil); err != nil || end == nil {
		return err
	}
	for left := stopWithin; ; {
		now := min(left, tellAfter)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(end.Fd()), Events: unix.POLLIN}}, int(now.Milliseconds()))
		switch left -= now; {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for process %d: %w", pid, err)
		case n > 0:
			return nil
		case left <= 0:
			return fmt.Errorf("the instance on %s was told to stop, and has not ended after %v: %s", c.path, stopWithin, c.wayOut())
		case left == stopWithin-tellAfter && c.Tell != nil:
			c.Tell(c.awaited("end"))
		}
	}
}

// process returns the ID of the instance's process, and a file that becomes readable when the process
// has ended. The file is nil if the process cannot be waited for, because it is this
// process or is not visible to it.
func (c *Client) process() (pid int, end *os.File) {
	pid = c.pid
	if pid == 0 || pid == os.Getpid() {
		return pid, nil
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return pid, nil
	}
	return pid, os.NewFile(uintptr(fd), "pidfd")
}

// Tap calls f for every frame that crosses an edge ("NAME.OUT" or "NAME.IN"),
// until ctx is done (Tap then returns nil), f returns an error, or the instance is gone. It calls
// begun, if not nil, once when copying has begun. The client cannot be used after Tap.
func (c *Client) Tap(ctx context.Context, at string, begun func(), f func(Captured) error) error {
	return c.stream(ctx, request{Op: opTap, At: at}, begun, f)
}

// Punts does what Tap does, for the frames that apps punt.
func (c *Client) Punts(ctx context.Context, begun func(), f func(Captured) error) error {
	return c.stream(ctx, request{Op: opPunts}, begun, f)
}

func (c *Client) stream(ctx context.Context, req request, begun func(), f func(Captured) error) error {
	defer context.AfterFunc(ctx, func() { c.conn.Close() })()
	if err := c.call(req, nil); err != nil {
		return c.ended(ctx, err)
	}
	if begun != nil {
		begun()
	}
	for {
		var x Captured
		if err := c.answer(&x); err != nil {
			return c.ended(ctx, err)
		}
		if err := f(x); err != nil {
			return err
		}
	}
}

// ended returns nil if the stream ended because ctx is done, and else err.
func (c *Client) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
