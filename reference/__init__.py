"""What is known right: plain autograd, and a split stage backward that meets the contract."""
