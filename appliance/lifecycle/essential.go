package lifecycle

import (
	"strings"
	"time"
)

// Essential names the components that must be ready for the whole to be ready; the others may be in any state.
type Essential []string

// Ready reports whether all of them are ready, or else the first that is not, with what it waits for.
func (e Essential) Ready(stages []Status) (ready bool, waiting string) {
	for _, name := range e {
		for _, s := range stages {
			if s.Name == name && s.State != Ready {
				detail := s.Detail
				if detail == "" {
					detail = strings.ToLower(string(s.State))
				}
				return false, name + ": " + detail
			}
		}
	}
	return true, ""
}

// Took is how long it took until all were ready for the first time, from the start of the process and of the kernel; 0
// if they are not yet.
func (e Essential) Took(stages []Status) (process, boot time.Duration) {
	for _, name := range e {
		for _, st := range stages {
			if st.Name != name {
				continue
			}
			if st.Took == 0 {
				return 0, 0
			}
			process, boot = max(process, st.Took), max(boot, st.SinceBoot)
		}
	}
	return process, boot
}
