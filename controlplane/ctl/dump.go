package ctl

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"google.golang.org/protobuf/encoding/prototext"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
)

// Dump writes what the session's device holds, including registers and counters, as an intent. Whoever reads
// the intent gets the same entities. Comments in it name the kinds that the device does not show. infoFile and
// configFile are the names of the P4Info and program files in the intent.
func (s *Session) Dump(ctx context.Context, info *p4info.Info, infoFile, configFile string, w io.Writer) (entities int, err error) {
	lines := make([][]string, len(sections))
	unread, err := s.Scan(ctx, info, Scope{All: true, Arrays: true}, func(e *p4v1.Entity) error {
		if t := e.GetTableEntry(); t != nil && t.IsDefaultAction {
			if _, other := removed(info, e); !other && len(t.Metadata) == 0 && t.MeterConfig == nil {
				return nil // as the program has it
			}
		}
		if i, text := line(info, e); i >= 0 {
			lines[i] = append(lines[i], text)
			entities++
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	b := bufio.NewWriter(w)
	name := s.Target.Name
	name = cmp.Or(name, fmt.Sprintf("device-%d", s.Target.DeviceID))
	fmt.Fprintf(b, "devices:\n  %s:\n    address: %s\n    device_id: %d\n", quoted(name), quoted(s.Target.Address), s.Target.DeviceID)
	if s.Target.Role != "" {
		fmt.Fprintf(b, "    role: %s\n", quoted(s.Target.Role))
	}
	fmt.Fprintf(b, "    p4info: %s\n", quoted(infoFile))
	if configFile != "" {
		fmt.Fprintf(b, "    config: %s\n", quoted(configFile))
	}
	for _, u := range unread {
		fmt.Fprintf(b, "    # not shown by the device: %s (%v)\n", u.What, u.Why)
	}
	for i, s := range sections {
		if len(lines[i]) == 0 {
			continue
		}
		slices.Sort(lines[i])
		fmt.Fprintf(b, "    %s:\n", s.name)
		for _, l := range lines[i] {
			fmt.Fprintf(b, "      - %s\n", l)
		}
	}
	return entities, b.Flush()
}

// Save writes what the session's device holds to an intent file, and its program to two other files.
func (s *Session) Save(ctx context.Context, file, infoFile, configFile string) (entities int, err error) {
	p, err := s.GetPipeline(ctx, p4v1.GetForwardingPipelineConfigRequest_ALL)
	if err != nil {
		return 0, err
	}
	if p.Info == nil {
		return 0, ErrNoPipeline
	}
	info, err := p4info.New(p.Info)
	if err != nil {
		return 0, err
	}
	text, err := prototext.MarshalOptions{Multiline: true, Indent: "  "}.Marshal(p.Info)
	if err != nil {
		return 0, err
	}
	var b bytes.Buffer
	if entities, err = s.Dump(ctx, info, filepath.Base(infoFile), filepath.Base(configFile), &b); err != nil {
		return 0, err
	}
	if err := os.WriteFile(infoFile, text, 0o644); err != nil {
		return 0, err
	}
	if err := os.WriteFile(configFile, p.Config, 0o644); err != nil {
		return 0, err
	}
	return entities, os.WriteFile(file, b.Bytes(), 0o644)
}
