package appliance

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"rivulet/appliance/api"
	"rivulet/offload/move"
)

// tellProgress is how often the one who asked for a move hears how far it is.
const tellProgress = 500 * time.Millisecond

// volumeRoutes move the data of claims.
func (s *System) volumeRoutes(mux *http.ServeMux) {
	mux.HandleFunc("POST /v1/volumes/move", func(w http.ResponseWriter, r *http.Request) {
		job, err := s.startMove(r)
		if err != nil {
			api.JSON(func(*http.Request) (any, error) { return nil, err }).ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		lines := json.NewEncoder(w)
		say := func(done bool) bool {
			p := api.Move{Progress: job.Progress(), Over: done}
			if err := job.Err(); done && err != nil {
				p.Error = err.Error()
			}
			err := lines.Encode(p)
			return errors.Join(err, http.NewResponseController(w).Flush()) == nil
		}
		tick := time.NewTicker(tellProgress)
		defer tick.Stop()
		for say(false) {
			select {
			case <-r.Context().Done(): // the asker has gone; the move goes on
				return
			case <-job.Ended():
				say(true)
				return
			case <-tick.C:
			}
		}
	})
}

func (s *System) startMove(r *http.Request) (*move.Job, error) {
	var want move.Request
	if err := json.NewDecoder(r.Body).Decode(&want); err != nil {
		return nil, err
	}
	s.mu.Lock()
	o := s.offload
	s.mu.Unlock()
	if o == nil {
		return nil, errors.New("no volume can be moved yet: rivulet is starting; see: rivulet status")
	}
	return o.Move(r.Context(), want)
}
