package upgrade

import "rivulet/appliance/api"

// Facts adds the build of this process to facts.
func Facts(of func() api.Facts) func() (any, error) {
	return func() (any, error) {
		f := of()
		var err error
		f.BuildID, err = BuildID("/proc/self/exe")
		return f, err
	}
}
