// Package ui shows a running instance in a browser: its graph with what each link carries, what apps cost and
// drop, boards, tables, the trace of a frame, and captures. With Config.Change the page can change arguments
// and tables. The page is one file set in the program, and loads nothing from elsewhere.
//
// A browser identifies itself by a token in the printed URL. At a Unix socket it needs none: only the
// socket's user can connect.
package ui

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/internal/httpd"
	"github.com/quillon/quillon/internal/rates"
	"github.com/quillon/quillon/nf/clock"
)

//go:embed page
var page embed.FS

// Config of a Server.
type Config struct {
	Address string // host:port or unix:PATH
	Anyone  bool   // others may reach the address, but still need the token
	Change  bool   // the page may change arguments of apps, and tables
	// Dial connects to the instance. It is called for each request, and again when the connection for the
	// events is lost.
	Dial  func() (*admin.Client, error)
	Clock clock.Clock
}

// Server shows one instance.
type Server struct {
	cfg   Config
	token string // "": the address is a socket that only its user can open
	http  *httpd.Server
	end   context.CancelFunc
	done  chan struct{}
	slow  chan struct{} // a place for each trace or capture that is under way

	mu   sync.Mutex
	last []byte                   // the newest event
	to   map[chan []byte]struct{} // a channel for each browser that gets events
	woke chan struct{}            // signals a new browser
}

// Limits of requests, and the interval of events.
const (
	every        = time.Second // interval of events
	maxSlow      = 4
	traceWithin  = 10 * time.Second
	captureFor   = 10 * time.Second
	captureBytes = 16 << 20
	maxEntries   = 500      // of a table, in an answer
	maxChange    = 64 << 10 // bytes of the body of a change
)

// Listen begins to serve.
func Listen(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, done: make(chan struct{}), slow: make(chan struct{}, maxSlow), to: map[chan []byte]struct{}{}, woke: make(chan struct{}, 1)}
	if !strings.HasPrefix(cfg.Address, "unix:") {
		s.token = rand.Text()
	}
	files, err := fs.Sub(page, "page")
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(files))
	mux.HandleFunc("GET /events", s.events)
	mux.HandleFunc("GET /tables", answer(s, s.tables))
	mux.HandleFunc("GET /table", answer(s, s.table))
	mux.HandleFunc("GET /p4", answer(s, s.p4))
	mux.HandleFunc("GET /trace", answer(s, s.trace))
	mux.HandleFunc("GET /capture", s.capture)
	if cfg.Change {
		mux.HandleFunc("POST /set", ours(answer(s, s.set)))
		mux.HandleFunc("POST /change", ours(answer(s, s.change)))
	}
	known := make(chan struct{}) // closed when s.http is set
	guarded := s.guard(mux)
	s.http, err = httpd.Listen("ui", cfg.Address, cfg.Anyone, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-known
		guarded.ServeHTTP(w, r)
	}))
	if err != nil {
		return nil, err
	}
	close(known)
	ctx, end := context.WithCancel(context.Background())
	s.end = end
	go s.watch(ctx)
	return s, nil
}

// URL returns the address to open in a browser; for a Unix socket, its address.
func (s *Server) URL() string {
	if s.token == "" {
		return s.cfg.Address
	}
	return "http://" + s.http.Addr().String() + "/?token=" + s.token
}

// Close ends all connections and waits until the Server is idle.
func (s *Server) Close() error {
	s.end()
	err := s.http.Close()
	<-s.done
	return err
}

// after returns the time in d from now.
func (s *Server) after(d time.Duration) time.Time {
	return time.Unix(0, int64(s.cfg.Clock.Now().Add(d)))
}

// guard answers only requests that have the token, in a cookie that the printed URL sets, and that name this
// host: a page elsewhere whose name was made to lead here (DNS rebinding) names another one.
func (s *Server) guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cache-Control", "no-store")
		if s.token == "" {
			h.ServeHTTP(w, r)
			return
		}
		addr := s.http.Addr().(*net.TCPAddr)
		if !s.cfg.Anyone && r.Host != addr.String() && r.Host != fmt.Sprintf("localhost:%d", addr.Port) {
			http.Error(w, "this address is not of that host", http.StatusMisdirectedRequest)
			return
		}
		name := fmt.Sprintf("quillon-%d", addr.Port)
		if got := r.URL.Query().Get("token"); r.URL.Path == "/" && s.is(got) {
			http.SetCookie(w, &http.Cookie{Name: name, Value: got, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
			http.Redirect(w, r, "/", http.StatusSeeOther)
			return
		}
		if c, err := r.Cookie(name); err != nil || !s.is(c.Value) {
			http.Error(w, "open the address with its token, as quillon printed it", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func (s *Server) is(token string) bool {
	return subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) == 1
}

// event is what browsers get each second. Without a connection to the instance only Error is set.
type event struct {
	Error  string       `json:"error,omitempty"`
	Change bool         `json:"change,omitempty"` // as Config.Change
	Graph  *admin.Graph `json:"graph,omitempty"`
	Rates  *rates.View  `json:"rates,omitempty"` // not in the first event
}

// watch reads the state of the instance each second while a browser gets events.
func (s *Server) watch(ctx context.Context) {
	defer close(s.done)
	var c *admin.Client
	var before *rates.Sight
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if s.watchers() == 0 {
			if c != nil {
				c.Close()
			}
			c, before = nil, nil
			select {
			case <-ctx.Done():
				return
			case <-s.woke:
			}
			tick.Reset(every)
		}
		var e event
		var err error
		if c == nil {
			if c, err = s.cfg.Dial(); err == nil {
				c.Within = httpd.Patience
			}
		}
		if err == nil {
			var now rates.Sight
			if now, err = rates.Look(c, s.cfg.Clock); err == nil {
				e.Change = s.cfg.Change
				now.Graph.Dot = ""
				e.Graph = &now.Graph
				if before != nil {
					v := rates.Between(*before, now)
					e.Rates = &v
				}
				before = &now
			}
		}
		if err != nil {
			if c != nil {
				c.Close()
			}
			c, before = nil, nil
			e = event{Error: err.Error()}
		}
		s.send(e)
		select {
		case <-ctx.Done():
			if c != nil {
				c.Close()
			}
			return
		case <-tick.C:
		}
	}
}

func (s *Server) watchers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.to)
}

// send gives an event to all browsers. It replaces an event that a browser has not taken yet.
func (s *Server) send(e event) {
	text, err := json.Marshal(e)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = text
	for to := range s.to {
		select {
		case <-to:
		default:
		}
		to <- text
	}
}

// events streams events until the browser disconnects.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{})
	w.Header().Set("Content-Type", "text/event-stream")
	mine := make(chan []byte, 1)
	s.mu.Lock()
	if s.last != nil && len(s.to) > 0 {
		mine <- s.last
	}
	s.to[mine] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.to, mine)
		s.mu.Unlock()
	}()
	select {
	case s.woke <- struct{}{}:
	default:
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case <-s.done:
			return
		case text := <-mine:
			err := out.SetWriteDeadline(s.after(httpd.Patience))
			if err == nil {
				_, err = fmt.Fprintf(w, "data: %s\n\n", text)
			}
			if err = errors.Join(err, out.Flush()); err != nil {
				return
			}
		}
	}
}
