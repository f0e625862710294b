package health

// Every kind of problem that a screen may show. A code is never used again for
// something else.
var (
	LimitsLow = declare("limits-low", Warning, "kernel limits are too low for containers")
)
