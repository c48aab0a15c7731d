# a plain python process that sees two cards
CUDA_VISIBLE_DEVICES=0,1 python two_cards.py
