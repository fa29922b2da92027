package resident

import (
	"bytes"
	"os"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// May is how many bytes of memory this process may have at most: those of the machine, or of
// its control group. 0: it is not known.
func May() int64 {
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) != nil {
		return 0
	}
	all := int64(s.Totalram) * int64(s.Unit)
	text, _ := os.ReadFile("/proc/self/cgroup")
	for _, line := range bytes.Split(text, []byte("\n")) {
		group, ok := bytes.CutPrefix(line, []byte("0::")) // of version 2
		if !ok {
			continue
		}
		for at := path.Clean("/" + string(group)); ; at = path.Dir(at) {
			text, _ := os.ReadFile(path.Join("/sys/fs/cgroup", at, "memory.max"))
			if n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil && n > 0 {
				all = min(all, n)
			}
			if at == "/" {
				break
			}
		}
	}
	return all
}
