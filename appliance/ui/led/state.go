package led

import "rivulet/appliance/health"

// Of is what a lamp can show of a device: an error goes first, a start that takes its
// time is none.
func Of(problems []health.Problem, ready bool) State {
	for _, p := range problems {
		if p.Severity == health.Error {
			return Wrong
		}
	}
	if !ready {
		return Starting
	}
	return Well
}
