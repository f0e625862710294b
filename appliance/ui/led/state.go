package led

import "rivulet/appliance/health"

// Of is the lamp's state: an error takes precedence, and a slow start is no error.
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
