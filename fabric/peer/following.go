package peer

// Following notifies of changes of the peers.
type Following interface {
	// Links lists the peers that have a tunnel, up or not. A cluster that is missing may still be a peer.
	Links() []Link
	// Departed are the clusters with a stored revocation that were peers.
	Departed() []ID
	// Changed returns a channel that receives after Links changed, and the function that ends the subscription.
	Changed() (<-chan struct{}, func())
}
