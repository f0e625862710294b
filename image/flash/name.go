package flash

import (
	"fmt"
	"math/rand/v2"
)

// Two lists of short words that nobody mistakes for another word, or takes amiss.
var (
	manners = []string{
		"able", "agile", "alert", "amber", "ample", "basic", "brave", "brisk", "bronze", "calm", "candid", "civic", "clever", "cosmic", "crisp", "dapper",
		"eager", "early", "fancy", "fast", "fluent", "fresh", "gentle", "glad", "golden", "grand", "handy", "happy", "honest", "humble", "ideal", "jolly",
		"keen", "kind", "lively", "loyal", "lucid", "lucky", "major", "mellow", "merry", "mighty", "modern", "modest", "nimble", "noble", "open", "polite",
		"proud", "quick", "quiet", "rapid", "ready", "silent", "silver", "smart", "snug", "solid", "steady", "sunny", "swift", "tidy", "vivid", "witty",
	}
	animals = []string{
		"alpaca", "badger", "beaver", "bison", "bobcat", "camel", "canary", "condor", "cougar", "cricket", "dingo", "dolphin", "donkey", "dragon", "eagle", "falcon",
		"ferret", "finch", "gecko", "gibbon", "giraffe", "hamster", "heron", "hornet", "husky", "ibis", "iguana", "impala", "jackal", "jaguar", "kiwi", "koala",
		"lemur", "leopard", "lizard", "llama", "lobster", "magpie", "marmot", "meerkat", "ocelot", "octopus", "osprey", "otter", "owl", "panda", "panther", "parrot",
		"pelican", "penguin", "pigeon", "puffin", "python", "rabbit", "raven", "robin", "salmon", "sparrow", "tapir", "tiger", "toucan", "turtle", "walrus", "zebra",
	}
)

// NewName returns a name for a device that is easy to say and to type: two words, and with digits a number, because
// of 30 devices whose names nobody chose two would have the same in one case of ten.
func NewName(digits bool) string {
	name := manners[rand.IntN(len(manners))] + "-" + animals[rand.IntN(len(animals))]
	if digits {
		name += fmt.Sprintf("-%d", 10+rand.IntN(90))
	}
	return name
}
