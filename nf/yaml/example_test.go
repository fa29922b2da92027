package yaml_test

import (
	"fmt"

	"github.com/quillon/quillon/nf/yaml"
)

// An error points at its place.
func ExampleUnmarshal() {
	var v struct {
		Name  string `yaml:"name"`
		Ports int    `yaml:"ports"`
	}
	err := yaml.Unmarshal([]byte("name: s1\nports: many\n"), &v)
	fmt.Println(err)
	fmt.Println(err.Excerpt)
	// Output:
	// 2:8: many: want a whole number of 64 bits
	// [2:8] many: want a whole number of 64 bits
	//    1 | name: s1
	// >  2 | ports: many
	//               ^
}
