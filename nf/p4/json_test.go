package p4

import (
	"strings"
	"testing"
	"time"
)

// TestWrongKinds: a value of a wrong kind is refused in one line, with its place in the JSON and the part
// that it belongs to.
func TestWrongKinds(t *testing.T) {
	for src, want := range map[string]string{
		"[]": "p4: the JSON is no object: want the output of p4c-bm2-ss or p4c-bm2-psa",
		"{\"headers\": [\n {\"name\": \"a\",\n \"id\": \"7\"}]}":                          "p4: line 3, byte 39: headers.id: a JSON string where a JSON number belongs",
		"{\"pipelines\": [{\"tables\": [{\n\"max_size\": []}]}]}":                         "p4: line 2, byte 42: pipelines.tables.max_size: a JSON array where a JSON number belongs",
		"{\"actions\": [{\"primitives\": {}}]}":                                           "p4: line 1, byte 29: actions.primitives: a JSON object where a JSON array belongs",
		"{\"header_types\": [{\"name\": \"x\", \"fields\": [[\"a\", \"0x5\"]]}]}":         `p4: header type x: width of field a is "0x5", want an integer from 1 to 65536`,
		"{\"header_types\": [{\"name\": \"x\", \"fields\": [[\"a\", 1e999]]}]}":           "p4: line 1, ",
		"{\"header_types\": [{\"name\": \"x\n\", \"fields\": [[\"a\", 1e999]]}]}":         "p4: not the JSON that p4c makes of a program: invalid character '\\n' in string literal",
		"{\"header_types\": [{\"name\": \"x\\n\", \"fields\": [[\"a\", 0]]}]}":            "p4: header type x\ufffd: width of field a is 0, want an integer from 1 to 65536",
		"{\"__meta__\": {\"version\": [1, 4]}}":                                           "p4: format version [1,4], want 2.x: compile with a current p4c-bm2-ss or p4c-bm2-psa",
		"{\"checksums\": [{\"target\": [\"a\", 1]}], \"pipelines\": [{\"name\": \"x\"}]}": "p4: line 1, byte 33: checksums.target: a JSON number where a JSON string belongs",
	} {
		if _, err := Load([]byte(src)); err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", src, err, want)
		}
	}
}

// TestDeepJSON: the time to read an expression grows with its length, not with its
// length times its depth.
func TestDeepJSON(t *testing.T) {
	const depth = 4900
	deep := strings.Repeat(`{"type":"expression","value":`, depth) + `{"type":"hexstr","value":"` + strings.Repeat("0", 1<<20) + `"}` + strings.Repeat("}", depth)
	s := newSource()
	s.action("go", nil, prim("assign", std("priority"), "HERE"))
	src := strings.Replace(string(s.json()), `"HERE"`, deep, 1)
	began := time.Now()
	_, err := Load([]byte(src))
	if want := "p4: action go, primitive assign: an expression is nested deeper than 1000"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	// Read on every level, it is 4,900 MB, more than half a minute.
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}
