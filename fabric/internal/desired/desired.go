// Package desired is the HTTP server of a process that receives its whole desired state and reports its status: the
// tunnel, and the gateway of a foreign cluster. It keeps no state. A refused state is answered with the text of the
// error, which ends in a cure; the previous state stays in force.
package desired

import (
	"encoding/json"
	"net/http"
)

// maxConfig bounds a configuration, bytes; a peer takes about 300.
const maxConfig = 4 << 20

// Config answers a PUT of the whole state: 204 when it is in force, 400 if unreadable, 422 if refused. Who begins the
// text for unreadable requests.
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

func Status[T any](status func() (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		st, err := status()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(st) //nolint:errcheck // the client has gone
	}
}
