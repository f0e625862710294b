package peer

// Following is how others learn which peers there are.
type Following interface {
	// Links lists the peers that have a tunnel, up or not. A peer that is missing
	// is no peer any more.
	Links() []Link
	// Departed are those of which it is remembered that they were peers and are none.
	Departed() []ID
	// Changed returns a channel that gets a value after Links changed, and the
	// function that ends the subscription.
	Changed() (<-chan struct{}, func())
}
