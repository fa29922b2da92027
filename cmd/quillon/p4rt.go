package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl"
	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/controlplane/p4rt/engine"
	"github.com/quillon/quillon/controlplane/p4rt/native"
	"github.com/quillon/quillon/internal/garbage"
	"github.com/quillon/quillon/internal/httpd"
	"github.com/quillon/quillon/internal/metrics"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
)

// p4rtFlags are run's flags about P4Runtime, metrics and the page of the instance.
type p4rtFlags struct {
	addr      string
	cert, key string
	clientCA  string
	insecure  bool
	roles     []string
	clients   []string
	files     string
	metrics   string
	ui        string
	uiChange  bool
}

func (f *p4rtFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.addr, "p4runtime", "", "serve P4Runtime on a Unix socket of root's: unix, or unix:PATH; and by TCP at `address`, if it is host:port, or host alone for port 9559")
	cmd.Flags().StringVar(&f.cert, "tls-cert", "", "P4Runtime's certificate, a PEM `file`; read again when it has changed")
	cmd.Flags().StringVar(&f.key, "tls-key", "", "the certificate's key, a PEM `file`")
	cmd.Flags().StringVar(&f.clientCA, "tls-client-ca", "", "PEM `file` with the authorities of clients, which must show a certificate")
	cmd.Flags().StringArrayVar(&f.clients, "p4-client", nil, "a client and what it may, as `NAME=ROLE,...`: the certificate's common name or a URI of it, and roles of --p4-role, or default; also: read-only, max-election-id=HIGH:LOW. Other certificates are refused then")
	cmd.Flags().BoolVar(&f.insecure, "insecure", false, "let whoever reaches a TCP address be a controller: P4Runtime in plain text, or without --tls-client-ca; and metrics and --ui beyond the loopback interface")
	cmd.Flags().StringArrayVar(&f.roles, "p4-role", nil, "a role and what it may write, as `NAME=TABLE,...`; also: multicast, packet-in, packet-out, pipeline. Other roles are refused then")
	cmd.Flags().StringVar(&f.files, "p4-files", "", "`directory` whose files controllers may name in arguments of apps, by full path, as in the keys= of a task of a board (default: none)")
	cmd.Flags().StringVar(&f.metrics, "metrics", "", "serve Prometheus metrics at `address`, as 127.0.0.1:9100")
	cmd.Flags().StringVar(&f.ui, "ui", "", "serve a page that shows the instance in a browser at `address`, as 127.0.0.1:8080, or unix:PATH (see quillon help ui)")
	cmd.Flags().BoolVar(&f.uiChange, "ui-change", false, "let that page change arguments of apps, and tables")
}

// served is the part of run's output about P4Runtime, metrics and the page.
type served struct {
	Socket  string         `json:"socket,omitempty"`  // unix:PATH
	Address string         `json:"address,omitempty"` // of TCP
	Devices []servedDevice `json:"devices,omitempty"`
	Metrics string         `json:"metrics,omitempty"`
	UI      string         `json:"ui,omitempty"` // the URL with its token
}

// servedDevice is a P4Runtime device and its app.
type servedDevice struct {
	ID  uint64 `json:"id"`
	App string `json:"app,omitempty"` // an app of kind p4; empty: the device has the tables of all other apps
	// Missing is a file that does not exist: the P4Info of the app's program. The device then has no program until a
	// controller loads one.
	Missing string `json:"missing_p4info,omitempty"`
}

func (s *served) print(w io.Writer) {
	at := s.Socket
	if s.Address != "" {
		at += " and " + s.Address
	}
	for _, d := range s.Devices {
		what := "the tables of the apps"
		if d.App != "" {
			what = "app " + d.App
		}
		if d.Missing != "" {
			what += fmt.Sprintf(", without its program, as there is no %s: a controller has to load one (quillon ctl set-pipeline)", d.Missing)
		}
		fmt.Fprintf(w, "P4Runtime on %s: device %d is %s\n", at, d.ID, what)
	}
	if s.Metrics != "" {
		fmt.Fprintf(w, "metrics on http://%s/metrics\n", s.Metrics)
	}
	if s.UI != "" {
		fmt.Fprintf(w, "shown at %s\n", s.UI)
	}
}

// listen serves an instance as the flags say. Each app of kind p4 is a device, numbered from 1 in the order
// of the apps' names; the tables of all other apps are one more device. control is the path of the instance's
// control socket.
func (f *p4rtFlags) listen(inst *graph.Instance, name, control string, clk clock.Clock, log *slog.Logger) (s *served, closeAll func() error, err error) {
	s = &served{}
	var closers []func() error
	closeAll = func() error {
		var errs []error
		for _, c := range slices.Backward(closers) {
			errs = append(errs, c())
		}
		closers = nil
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll())
		}
	}()
	var stats *p4rt.Stats
	if f.addr != "" {
		var roles map[string]p4rt.Role
		if roles, err = parseRoles(f.roles); err != nil {
			return s, closeAll, err
		}
		var clients []p4rt.Client
		if clients, err = parseClients(f.clients); err != nil {
			return s, closeAll, err
		}
		spare := garbage.Less(garbage.Patient)
		closers = append(closers, func() error { spare(); return nil })
		server := p4rt.New(p4rt.Config{Clock: clk, Roles: roles})
		stats = server.Stats()
		s.Devices, err = devices(server, inst, clk, f.files, &closers)
		// The server is closed after its listeners, and before what its devices use.
		closers = append(closers, func() error { server.Close(); return nil })
		if err != nil {
			return s, closeAll, err
		}
		serve := func(cfg p4rt.ListenConfig) (net.Addr, error) {
			cfg.Log = func(err error) { log.Warn(err.Error(), "part", "p4runtime") }
			l, err := p4rt.Listen(server, cfg)
			if err != nil {
				return nil, err
			}
			closers = append(closers, l.Close)
			return l.Addr(), nil
		}
		if control, err = filepath.Abs(control); err != nil {
			return s, closeAll, err
		}
		socket, tcp := p4rt.SocketPrefix+p4rt.SocketPath(control), true
		if f.addr == "unix" {
			tcp = false
		} else if strings.HasPrefix(f.addr, p4rt.SocketPrefix) {
			socket, tcp = f.addr, false
		}
		if tcp {
			// The TCP listener comes first, because its flags may be wrong.
			var at net.Addr
			if at, err = serve(p4rt.ListenConfig{Address: f.addr, Cert: f.cert, Key: f.key, ClientCA: f.clientCA, Clients: clients, Insecure: f.insecure}); err != nil {
				return s, closeAll, err
			}
			s.Address = at.String()
		} else if f.cert != "" || f.key != "" || f.clientCA != "" || len(clients) > 0 {
			return s, closeAll, errors.New("--tls-cert, --tls-key, --tls-client-ca and --p4-client are for TCP: give --p4runtime a host, and the socket is served beside it")
		}
		if _, err = serve(p4rt.ListenConfig{Address: socket}); err != nil {
			return s, closeAll, err
		}
		s.Socket = socket
	} else if f.cert != "" || f.key != "" || f.clientCA != "" || len(f.clients) > 0 || len(f.roles) > 0 || f.files != "" {
		return s, closeAll, errors.New("--tls-cert, --tls-key, --tls-client-ca, --p4-client, --p4-role and --p4-files are for --p4runtime")
	}
	if f.metrics != "" {
		var m *httpd.Server
		m, err = metrics.Listen(metrics.Config{Address: f.metrics, Anyone: f.insecure, Name: name, Started: clk.Now(), Instance: inst, Server: stats})
		if err != nil {
			return s, closeAll, err
		}
		closers = append(closers, m.Close)
		s.Metrics = m.Addr().String()
	}
	return s, closeAll, nil
}

// unreadable warns about files that are read again later, but that the process cannot read without the
// privileges that it has given up.
func (f *p4rtFlags) unreadable(log *slog.Logger) {
	for _, name := range []string{f.cert, f.key, f.clientCA} {
		if name == "" {
			continue
		}
		file, err := os.Open(name)
		if err != nil {
			log.Warn(fmt.Sprintf("%v, for uid %d without root's capabilities: P4Runtime stays with what was read at the start, also when the file is renewed", err, os.Geteuid()), "file", name)
			continue
		}
		_ = file.Close()
	}
}

// devices adds the devices of an instance to a server.
func devices(server *p4rt.Server, inst *graph.Instance, clk clock.Clock, files string, closers *[]func() error) ([]servedDevice, error) {
	spec := inst.Spec()
	var punts *engine.Punts
	var list []servedDevice
	others := false
	for _, name := range slices.Sorted(maps.Keys(spec.Apps)) {
		app := spec.Apps[name]
		if app.Kind != "p4" {
			others = true
			continue
		}
		if punts == nil {
			var err error
			if punts, err = engine.ListenPunts(inst); err != nil {
				return nil, err
			}
			*closers = append(*closers, func() error { punts.Close(); return nil })
		}
		cfg := engine.Config{Instance: inst, App: name, Punts: punts, Clock: clk}
		missing, err := programOf(app.Args["program"], &cfg)
		if err != nil {
			return nil, fmt.Errorf("app %s: %w", name, err)
		}
		dev, err := engine.New(cfg)
		if err != nil {
			return nil, err
		}
		id := uint64(len(list) + 1)
		if err := server.Add(id, dev); err != nil {
			return nil, err
		}
		list = append(list, servedDevice{id, name, missing})
	}
	if others || len(list) == 0 {
		dev, err := native.New(inst)
		if err != nil {
			return nil, err
		}
		if files != "" {
			if !filepath.IsAbs(files) {
				return nil, fmt.Errorf("--p4-files %s: want a full path", files)
			}
			if s, err := os.Stat(files); err != nil || !s.IsDir() {
				return nil, fmt.Errorf("--p4-files %s: no such directory", files)
			}
			dev.Files(files)
		}
		id := uint64(len(list) + 1)
		if err := server.Add(id, dev); err != nil {
			return nil, err
		}
		list = append(list, servedDevice{ID: id})
	}
	return list, nil
}

// programOf reads into cfg the program that an app begins with, and its P4Info beside it. For NAME.json that
// is NAME.p4info.txtpb, NAME.p4info.txt or NAME.p4info.bin. If there is none, missing is the name of the
// first of these.
func programOf(name string, cfg *engine.Config) (missing string, err error) {
	if name == "" {
		return "", nil
	}
	src, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	base := strings.TrimSuffix(name, ".json")
	for _, end := range []string{".p4info.txtpb", ".p4info.txt", ".p4info.bin"} {
		text, err := os.ReadFile(base + end)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", err
		}
		if cfg.Info, err = p4info.Parse(text); err != nil {
			return "", fmt.Errorf("%s: %w", base+end, err)
		}
		cfg.Program = src
		return "", nil
	}
	return base + ".p4info.txtpb", nil
}

// defaultRole stands, in --p4-client, for the role whose name is empty.
const defaultRole = "default"

// parseClients reads --p4-client.
func parseClients(list []string) ([]p4rt.Client, error) {
	var clients []p4rt.Client
	for _, s := range list {
		name, what, ok := strings.Cut(s, "=")
		if !ok || name == "" || what == "" {
			return nil, fmt.Errorf("--p4-client %s: want NAME=ROLE,..., as in controller=default", s)
		}
		if slices.ContainsFunc(clients, func(c p4rt.Client) bool { return c.Name == name }) {
			return nil, fmt.Errorf("--p4-client %s: %s is there twice: give all that it may at once", s, name)
		}
		c := p4rt.Client{Name: name}
		for _, w := range strings.Split(what, ",") {
			most, limit := strings.CutPrefix(w, "max-election-id=")
			switch {
			case limit:
				e, err := ctl.ParseElectionID(strings.Replace(most, ":", ",", 1))
				if err != nil {
					return nil, fmt.Errorf("--p4-client %s: max-election-id=%s: want HIGH:LOW, as in 0:9", s, most)
				}
				c.MaxElection = &p4v1.Uint128{High: e.High, Low: e.Low}
			case w == "read-only":
				c.ReadOnly = true
			case w == defaultRole:
				c.Roles = append(c.Roles, "")
			case w == "":
				return nil, fmt.Errorf("--p4-client %s: a role is missing", s)
			default:
				c.Roles = append(c.Roles, w)
			}
		}
		if len(c.Roles) == 0 {
			return nil, fmt.Errorf("--p4-client %s: in which role? add one of --p4-role, or default", s)
		}
		clients = append(clients, c)
	}
	return clients, nil
}

// parseRoles reads --p4-role.
func parseRoles(list []string) (map[string]p4rt.Role, error) {
	if len(list) == 0 {
		return nil, nil
	}
	roles := map[string]p4rt.Role{}
	for _, s := range list {
		name, objects, ok := strings.Cut(s, "=")
		if !ok || objects == "" {
			return nil, fmt.Errorf("--p4-role %s: want NAME=TABLE,...", s)
		}
		if name == "" || name == defaultRole {
			return nil, fmt.Errorf("--p4-role %s: the default role may do everything: take another name", s)
		}
		r := roles[name]
		for _, o := range strings.Split(objects, ",") {
			switch o {
			case "multicast":
				r.Replication = true
			case "packet-in":
				r.PacketIn = true
			case "packet-out":
				r.PacketOut = true
			case "pipeline":
				r.Pipeline = true
			default:
				r.Objects = append(r.Objects, o)
			}
		}
		roles[name] = r
	}
	return roles, nil
}
