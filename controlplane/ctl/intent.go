package ctl

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	p4configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/nf/yaml"
)

// Intent says what devices should hold. Its file is YAML:
//
//	devices:
//	  s1:
//	    address: unix:/run/quillon/p4rt/switch.sock
//	    device_id: 1
//	    p4info: l2_bridge.p4info.txtpb
//	    config: l2_bridge.json
//	    leave: [smac, dmac]
//	    multicast:
//	      - {group: 1, ports: [1, 2, 3]}
//	    entries:
//	      - {table: port_vlan, match: {ingress_port: 1}, action: set_vid, params: {vid: 10}}
//	      - {table: vlan_member, default: true, action: refuse_member}
//	      - {table: tasks, match: {task: fw}, action: run, params: {kind: firewall, args: {default: allow}, more: {area: 2}}}
//
// Files are relative to the directory of the intent. Of a name the part after a dot is enough if no other name
// ends with it. A map as the value of a parameter that is a string stands for a JSON object of strings. A
// device is at its intent if it has exactly the intent's entries, multicast groups, clone sessions, members and
// groups; a table without a default action in the intent has the program's default action. Tables under leave
// are not touched, and neither are digests, meters and value sets that the intent does not name. Registers and
// counters are written only when the program is loaded.
type Intent struct {
	File    string
	Devices []*Device
}

// Device says what one device should hold.
type Device struct {
	Target
	Info     *p4info.Info
	Pipeline *Pipeline
	Leave    []*p4info.Table // tables that are not the intent's: others write them
	Entities []*p4v1.Entity  // canonical, each Key once
}

// files reads each file once for all devices that name it.
type files struct {
	read      func(path string) ([]byte, error)
	infos     map[string]*p4info.Info
	configs   map[string][]byte
	pipelines map[string]*Pipeline
}

// ReadIntent reads a file and all files that it names, and checks their contents.
func ReadIntent(file string) (*Intent, error) {
	src, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return parseIntent(file, src)
}

func parseIntent(file string, src []byte) (*Intent, error) {
	return ParseIntent(file, src, os.ReadFile)
}

// ParseIntent parses the text of an intent. read reads the files that the intent names; if the intent has a
// relative path, the path that read gets begins with the directory of file.
func ParseIntent(file string, src []byte, read func(path string) ([]byte, error)) (*Intent, error) {
	root, err := yaml.Tree(file, src)
	if err != nil {
		return nil, err
	}
	fs := files{read, map[string]*p4info.Info{}, map[string][]byte{}, map[string]*Pipeline{}}
	in := &Intent{File: file}
	err = root.Fields("intent", map[string]func(*yaml.Node) error{"devices": func(n *yaml.Node) error {
		if err := n.Want(yaml.Mapping, "devices"); err != nil {
			return err
		}
		for i, k := range n.Keys {
			d, err := readDevice(&fs, k.Text, n.List[i], filepath.Dir(file))
			if err != nil {
				return n.List[i].Wrap("device "+k.Text, err)
			}
			in.Devices = append(in.Devices, d)
		}
		return nil
	}})
	if err != nil {
		return nil, err
	}
	if len(in.Devices) == 0 {
		return nil, &yaml.Error{File: file, Line: 1, Msg: "there are no devices"}
	}
	seen := map[Target]string{}
	for _, d := range in.Devices {
		t := d.Target
		t.Name = ""
		if other := seen[t]; other != "" {
			return nil, &yaml.Error{File: file, Line: 1, Msg: fmt.Sprintf("devices %s and %s are the same: %s, device id %d", other, d.Name, d.Address, d.DeviceID)}
		}
		seen[t] = d.Name
	}
	return in, nil
}

func readDevice(fs *files, name string, n *yaml.Node, dir string) (*Device, error) {
	d := &Device{Target: Target{Name: name, DeviceID: 1}}
	var infoFile, configFile string
	var leave []*yaml.Node
	lists := make([][]*yaml.Node, len(sections))
	known := map[string]func(*yaml.Node) error{
		"address": yaml.Text(&d.Address), "device_id": yaml.Int(&d.DeviceID), "role": yaml.Text(&d.Role),
		"p4info": yaml.Text(&infoFile), "config": yaml.Text(&configFile),
		"leave": yaml.Each(func(n *yaml.Node) error { leave = append(leave, n); return nil }),
	}
	for i, s := range sections {
		known[s.name] = yaml.Each(func(n *yaml.Node) error { lists[i] = append(lists[i], n); return nil })
	}
	if err := n.Fields("device "+name, known); err != nil {
		return nil, err
	}
	if d.Address == "" {
		return nil, errors.New("address is missing")
	}
	if infoFile == "" {
		return nil, errors.New("p4info is missing")
	}
	if d.DeviceID == 0 {
		return nil, errors.New("device_id is 0: they begin with 1")
	}
	abs := func(f string) string {
		if f == "" || filepath.IsAbs(f) {
			return f
		}
		return filepath.Join(dir, f)
	}
	var err error
	if d.Info, d.Pipeline, err = fs.pipeline(abs(infoFile), abs(configFile)); err != nil {
		return nil, err
	}
	for _, l := range leave {
		t, err := p4info.ByName(d.Info.Tables, "table", l.Text)
		if err != nil {
			return nil, l.Wrap("device "+name+": leave", err)
		}
		d.Leave = append(d.Leave, t)
	}
	return d, d.readSections(lists)
}

// readSections reads the lists of entities of a device.
func (d *Device) readSections(lists [][]*yaml.Node) error {
	where := map[string]*yaml.Node{}
	var errs []error
	for i := range sections {
		for _, n := range lists[i] {
			e, err := sections[i].read(d.Info, p4v1.Update_UNSPECIFIED, n)
			if err != nil {
				errs = append(errs, err)
				if len(errs) == 20 {
					return errors.Join(append(errs, errors.New("and perhaps more"))...)
				}
				continue
			}
			key := p4info.Key(e)
			if first := where[key]; first != nil {
				errs = append(errs, n.Errorf("%s is there twice: see line %d", d.Info.Text(e), first.Line))
				continue
			}
			where[key] = n
			if d.leaves(e) {
				errs = append(errs, n.Errorf("%s: its table is to be left", d.Info.Text(e)))
				continue
			}
			d.Entities = append(d.Entities, e)
		}
	}
	return errors.Join(append(errs, d.references(where))...)
}

// leaves reports whether an entity belongs to a table in Leave, or to the action profile of such tables.
func (d *Device) leaves(e *p4v1.Entity) bool {
	if t := e.GetTableEntry(); t != nil {
		return slices.Contains(d.Leave, d.Info.Table(t.TableId))
	}
	p := d.Info.ProfileOf(e)
	return p != nil && left(d.Leave, p)
}

// references checks that the intent has all entities to which its entities refer.
func (d *Device) references(where map[string]*yaml.Node) error {
	have := map[string]bool{}
	for _, e := range d.Entities {
		have[p4info.Key(e)] = true
	}
	var errs []error
	for _, e := range d.Entities {
		for _, need := range d.Info.References(e) {
			if !have[need.Key] {
				errs = append(errs, where[p4info.Key(e)].Errorf("%s: there is no %s", d.Info.Text(e), need.Text))
			}
		}
	}
	return errors.Join(errs...)
}

func (fs *files) pipeline(infoFile, configFile string) (*p4info.Info, *Pipeline, error) {
	info := fs.infos[infoFile]
	if info == nil {
		b, err := fs.read(infoFile)
		if err != nil {
			return nil, nil, err
		}
		m, err := decodeP4Info(infoFile, b)
		if err != nil {
			return nil, nil, err
		}
		if info, err = p4info.New(m); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", infoFile, err)
		}
		fs.infos[infoFile] = info
	}
	if configFile == "" {
		return info, nil, nil
	}
	if p := fs.pipelines[infoFile+"\x00"+configFile]; p != nil {
		return info, p, nil
	}
	config, ok := fs.configs[configFile]
	if !ok {
		var err error
		if config, err = fs.read(configFile); err != nil {
			return nil, nil, err
		}
		fs.configs[configFile] = config
	}
	p := NewPipeline(info.Proto, config)
	fs.pipelines[infoFile+"\x00"+configFile] = p
	return info, p, nil
}

// NewPipeline returns a program with a cookie made from its content.
func NewPipeline(info *p4configv1.P4Info, config []byte) *Pipeline {
	h := sha256.New()
	m, err := proto.MarshalOptions{Deterministic: true}.Marshal(info)
	if err != nil { // impossible: the message was decoded before
		m = nil
	}
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(m))))
	h.Write(m)
	h.Write(config)
	return &Pipeline{Info: info, Config: config, Cookie: binary.BigEndian.Uint64(h.Sum(nil))}
}

// ReadP4Info reads a P4Info in any of the forms that p4info.Decode reads.
func ReadP4Info(file string) (*p4configv1.P4Info, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return decodeP4Info(file, b)
}

func decodeP4Info(file string, b []byte) (*p4configv1.P4Info, error) {
	m, err := p4info.Decode(b)
	if err != nil {
		first, _, _ := strings.Cut(strings.ReplaceAll(err.Error(), "\u00a0", " "), "\n")
		return nil, fmt.Errorf("%s: no P4Info: %s", file, strings.TrimPrefix(first, "proto: "))
	}
	return m, nil
}
