package xdp

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/quillon/quillon/nf/p4"
)

// nothingRuns is a program whose parser begins with what the kernel cannot do.
func nothingRuns(t testing.TB) []byte {
	const looks, skips = `"value":["scalars","tmp_1"]},{"type":"lookahead","value":[0,112]}],"op":"set"`, `"value":["scalars","tmp"]}],"op":"advance"`
	return []byte(strings.Replace(string(read(t, "../../../p4src/nt_classifier.json")), looks, skips, 1))
}

// TestNothingRuns: of a program whose parser begins with what only the engine can do nothing runs in the kernel, and nothing behind is said to.
func TestNothingRuns(t *testing.T) {
	_, tree, err := p4.LoadTree(nothingRuns(t))
	if err != nil {
		t.Fatal(err)
	}
	const why = "it skips a number of bits that is not known before"
	r := Analyse(tree, p4.Config{})
	if len(r.Parts) != 1 || r.Parts[0].Name != "start" || !slices.Equal(r.Parts[0].Engine, []string{why}) {
		t.Errorf("parts %+v", r.Parts)
	}
	if want := "no frame can come to its end in the kernel: state start: " + why; r.Kernel || r.Why != want {
		t.Errorf("kernel %v, %q; want %q", r.Kernel, r.Why, want)
	}
	x, err := New(tree, p4.Config{DropPort: 511, Queues: 8}, Options{From: []Source{{Index: loopback, Port: 1}}})
	if x != nil {
		_ = x.Close()
	}
	if none := (errNothing{}); !errors.As(err, &none) || !strings.Contains(err.Error(), why) {
		t.Errorf("New: %v", err)
	}
}

// otherArchitecture returns the JSON of a program for PSA that does nothing.
func otherArchitecture(t *testing.T) []byte {
	t.Helper()
	var types, headers []any
	for name, fields := range map[string]string{
		"psa_ingress_parser_input_metadata":  "ingress_port packet_path",
		"psa_egress_parser_input_metadata":   "egress_port packet_path",
		"psa_ingress_input_metadata":         "ingress_port packet_path ingress_timestamp parser_error",
		"psa_ingress_output_metadata":        "class_of_service clone clone_session_id drop resubmit multicast_group egress_port",
		"psa_egress_input_metadata":          "class_of_service egress_port packet_path instance egress_timestamp parser_error",
		"psa_egress_output_metadata":         "clone clone_session_id drop",
		"psa_egress_deparser_input_metadata": "egress_port",
	} {
		var all []any
		for _, f := range strings.Fields(fields) {
			all = append(all, []any{f, 32})
		}
		types = append(types, map[string]any{"name": name, "fields": all})
		headers = append(headers, map[string]any{"name": name, "id": len(headers), "header_type": name, "metadata": true})
	}
	b, err := json.Marshal(map[string]any{"header_types": types, "headers": headers})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestOtherArchitecture: the kernel runs nothing of a program for PSA, and says that this is why.
func TestOtherArchitecture(t *testing.T) {
	_, tree, err := p4.LoadTree(otherArchitecture(t))
	if err != nil {
		t.Fatal(err)
	}
	const want = "architecture psa: the kernel runs v1model"
	if r := Analyse(tree, p4.Config{}); r.Kernel || r.Why != want {
		t.Errorf("%+v", r)
	}
	x, err := New(tree, p4.Config{DropPort: 511, Queues: 8}, Options{From: []Source{{Index: loopback, Port: 1}}})
	if x != nil {
		_ = x.Close()
	}
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("New: %v", err)
	}
}
