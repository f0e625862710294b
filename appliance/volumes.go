package appliance

import (
	"encoding/json"
	"errors"
	"net/http"

	"rivulet/appliance/api"
	"rivulet/offload/consumer/move"
)

// volumeRoutes move the data of claims.
func (s *System) volumeRoutes(mux *http.ServeMux) {
	mux.Handle("POST /v1/volumes/move", api.MoveRoute(s.startMove))
}

func (s *System) startMove(r *http.Request) (*move.Job, error) {
	var want move.Request
	if err := json.NewDecoder(r.Body).Decode(&want); err != nil {
		return nil, err
	}
	o := s.made.get().offload
	if o == nil {
		return nil, errors.New("no volume can be moved yet: rivulet is starting; see: rivulet status")
	}
	return o.Move(r.Context(), want)
}
