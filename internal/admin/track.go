package admin

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/track"
)

// connections answers with the connections that the request's filter means. It returns an error if the client is gone.
func (s *Server) connections(out *json.Encoder, req request) error {
	inst, err := s.instance()
	if err != nil {
		return out.Encode(failure(err))
	}
	f := req.Filter
	if f == nil {
		f = &track.Filter{}
	}
	apps, err := trackers(inst, f.App)
	if err != nil {
		return out.Encode(failure(err))
	}
	r := connections{Connections: []Connection{}}
	var gone error
	for _, app := range apps {
		err := inst.Connections(app, f.Has, func(c *track.Connection) error {
			if len(r.Connections) == tableBatch {
				r.More = true
				if gone = out.Encode(success(r)); gone != nil {
					return gone
				}
				r = connections{Connections: r.Connections[:0]}
			}
			r.Connections = append(r.Connections, Connection{*c, c.Left.Seconds()})
			return nil
		})
		switch {
		case gone != nil:
			return gone
		case err != nil:
			return out.Encode(failure(err))
		}
	}
	return out.Encode(success(r))
}

// trackers returns the apps that remember connections: all, or the one called name if name is not empty.
func trackers(inst *graph.Instance, name string) (apps []string, err error) {
	spec := inst.Spec()
	for _, app := range slices.Sorted(maps.Keys(spec.Apps)) {
		tracks := false
		if err := inst.Visit(app, 0, func(a graph.App) { tracks = graph.HooksOf(a).Connections != nil }); err != nil {
			continue // it has just been taken out
		}
		if tracks && (name == "" || name == app) {
			apps = append(apps, app)
		}
	}
	switch {
	case len(apps) > 0:
		return apps, nil
	case name == "":
		return nil, fmt.Errorf("no app here remembers connections")
	case spec.Apps[name].Kind == "":
		return nil, fmt.Errorf("no app is named %q%s", name, graph.Suggest(name, slices.Sorted(maps.Keys(spec.Apps))))
	}
	return nil, fmt.Errorf("app %s (%s) remembers no connections", name, spec.Apps[name].Kind)
}

// Connections calls f with each connection that the filter means, until f returns an error, which it returns.
func (c *Client) Connections(filter track.Filter, f func(*Connection) error) error {
	var r connections
	err := c.call(request{Op: opTrack, Filter: &filter}, &r)
	var stopped error
	for {
		if err != nil {
			return err
		}
		for i := range r.Connections {
			x := &r.Connections[i]
			x.Connection.Left = time.Duration(x.Left * float64(time.Second))
			if stopped == nil {
				stopped = f(x)
			}
		}
		if !r.More {
			return stopped
		}
		r = connections{}
		err = c.next(&r)
	}
}
