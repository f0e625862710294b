// Package desired is the server's end of a process that is told its whole desired
// state over HTTP and says how it is: the tunnel, and the gateway of a foreign cluster.
// It reads and writes nothing of its own. What cannot be is answered with the text of the
// error, which ends in a cure; the state before stays in force.
package desired

import (
	"encoding/json"
	"net/http"
)

// maxConfig bounds a configuration, bytes; a peer takes about 300.
const maxConfig = 4 << 20

// Config answers a PUT of the whole state: 204 when it is in force, 400 if it cannot be
// read, 422 if it cannot be. who begins the text of what cannot be read.
func Config[T any](who string, apply func(T) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var cfg T
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxConfig)).Decode(&cfg); err != nil {
			http.Error(w, who+": the configuration is unreadable: "+err.Error(), http.StatusBadRequest)
			return
		}
		if err := apply(cfg); err != nil {
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// Status answers a GET.
func Status[T any](status func() (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		st, err := status()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(st) //nolint:errcheck // he has gone
	}
}
