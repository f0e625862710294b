package support

import (
	"net/http"
	"runtime/pprof"
)

// Goroutines answers with the stacks of this process, for the archive.
func Goroutines(w http.ResponseWriter, _ *http.Request) {
	pprof.Lookup("goroutine").WriteTo(w, 2) //nolint:errcheck // the client has gone
}
